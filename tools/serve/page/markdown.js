// Markdown to DOM nodes. Text never becomes markup: everything is made by createElement and textContent.
"use strict";

const markdown = (() => {
  const element = (name, ...children) => {
    const e = document.createElement(name);
    for (const c of children) e.append(c);
    return e;
  };

  // Only what cannot run anything.
  const safeLink = (url) => /^(https?:|mailto:)/i.test(url) ? url : null;

  // Spans are short and not deep: models repeat themselves, and a page must not stop because of it.
  const patterns = [
    [/^`+/, null],
    [/^\*\*(?=\S)([\s\S]{0,800}?\S)\*\*/, (m, depth) => element("strong", ...inline(m[1], depth + 1))],
    [/^__(?=\S)([\s\S]{0,800}?\S)__/, (m, depth) => element("strong", ...inline(m[1], depth + 1))],
    [/^\*(?=[^\s*])([\s\S]{0,800}?[^\s*])\*(?!\*)/, (m, depth) => element("em", ...inline(m[1], depth + 1))],
    [/^_(?=[^\s_])([\s\S]{0,800}?[^\s_])_(?![\w_])/, (m, depth) => element("em", ...inline(m[1], depth + 1))],
    [/^~~(?=\S)([\s\S]{0,800}?\S)~~/, (m, depth) => element("del", ...inline(m[1], depth + 1))],
    [/^\[([^\]\n]{1,500})\]\(([^)\s]{1,2000})\)/, (m) => link(m[1], m[2])],
    [/^https?:\/\/[^\s<>"')\]]+/, (m) => link(m[0], m[0])],
  ];

  function link(text, url) {
    const href = safeLink(url);
    if (!href) return document.createTextNode(`${text} (${url})`);
    const a = element("a", text);
    a.href = href;
    a.rel = "noopener noreferrer nofollow";
    a.target = "_blank";
    return a;
  }

  // A code span ends with as many backticks as it began with.
  function codeSpan(text, ticks) {
    const end = text.slice(0, 4000).indexOf(ticks, ticks.length);
    if (end < 0) return null;
    return { node: element("code", text.slice(ticks.length, end).trim()), length: end + ticks.length };
  }

  function inline(text, depth = 0) {
    const out = [];
    let plain = "";
    const flush = () => { if (plain) out.push(document.createTextNode(plain)); plain = ""; };
    for (let i = 0; i < text.length;) {
      const rest = text.slice(i);
      let taken = 0;
      if ("`*_~[h\\".includes(rest[0]) && depth < 8) {
        if (rest[0] === "\\" && /^\\[\\`*_{}[\]()#+\-.!~|>]/.test(rest)) {
          plain += rest[1];
          i += 2;
          continue;
        }
        const wordBefore = i > 0 && /\w/.test(text[i - 1]);
        for (const [pattern, make] of patterns) {
          const m = pattern.exec(rest);
          if (!m || (wordBefore && (rest[0] === "_" || rest[0] === "h"))) continue;
          const span = make ? { node: make(m, depth), length: m[0].length } : codeSpan(rest, m[0]);
          if (!span) break;
          flush();
          out.push(span.node);
          taken = span.length;
          break;
        }
      }
      if (!taken) {
        plain += text[i];
        taken = 1;
      }
      i += taken;
    }
    flush();
    return out;
  }

  const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
  const bullet = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

  function codeBlock(lines, i, open) {
    const close = new RegExp(`^ {0,3}${open[1][0] === "`" ? "`" : "~"}{${open[1].length},}\\s*$`);
    const body = [];
    for (i++; i < lines.length && !close.test(lines[i]); i++) body.push(lines[i]);
    const code = element("code", body.join("\n"));
    if (open[2]) code.dataset.language = open[2];
    return [element("pre", code), i + 1];
  }

  function list(lines, i, depth) {
    const first = bullet.exec(lines[i]);
    const ordered = /\d/.test(first[2]);
    const indent = first[1].length;
    const out = element(ordered ? "ol" : "ul");
    if (ordered) out.start = parseInt(first[2], 10);
    while (i < lines.length) {
      const m = bullet.exec(lines[i]);
      if (!m || m[1].length < indent || (m[1].length < indent + 2 && /\d/.test(m[2]) !== ordered)) break;
      if (m[1].length >= indent + 2 && out.lastChild && depth < 8) {
        const [inner, next] = list(lines, i, depth + 1);
        out.lastChild.append(inner);
        i = next;
        continue;
      }
      const text = [m[3]];
      for (i++; i < lines.length && lines[i].trim() && !bullet.test(lines[i]) && /^\s{2,}/.test(lines[i]); i++) text.push(lines[i].trim());
      out.append(element("li", ...inline(text.join("\n"))));
      while (i + 1 < lines.length && !lines[i].trim() && bullet.test(lines[i + 1])) i++;
    }
    return [out, i];
  }

  function table(lines, i) {
    const head = element("tr", ...cells(lines[i]).map((c) => element("th", ...inline(c))));
    const body = element("tbody");
    for (i += 2; i < lines.length && lines[i].includes("|"); i++) body.append(element("tr", ...cells(lines[i]).map((c) => element("td", ...inline(c)))));
    return [element("table", element("thead", head), body), i];
  }

  function blocks(lines, depth = 0) {
    const out = [];
    for (let i = 0; i < lines.length;) {
      const line = lines[i];
      const open = fence.exec(line);
      const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
      if (!line.trim()) {
        i++;
      } else if (open) {
        const [node, next] = codeBlock(lines, i, open);
        out.push(node);
        i = next;
      } else if (heading) {
        out.push(element(`h${Math.min(6, heading[1].length + 3)}`, ...inline(heading[2])));
        i++;
      } else if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
        out.push(element("hr"));
        i++;
      } else if (/^ {0,3}>/.test(line) && depth < 8) {
        const inner = [];
        for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
        out.push(element("blockquote", ...blocks(inner, depth + 1)));
      } else if (bullet.test(line)) {
        const [node, next] = list(lines, i, 0);
        out.push(node);
        i = next;
      } else if (line.includes("|") && i + 1 < lines.length && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1]) && lines[i + 1].includes("-")) {
        const [node, next] = table(lines, i);
        out.push(node);
        i = next;
      } else {
        const text = [line];
        for (i++; i < lines.length && lines[i].trim() && !fence.test(lines[i]) && !/^#{1,6}\s/.test(lines[i]) && !bullet.test(lines[i]) && !/^ {0,3}>/.test(lines[i]); i++) text.push(lines[i]);
        out.push(element("p", ...inline(text.join("\n"))));
      }
    }
    return out;
  }

  return (text) => blocks(text.replace(/\r\n?/g, "\n").split("\n"));
})();
