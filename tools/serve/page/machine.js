// Figures of the machine: Prometheus text, the map of experts, two curves.
"use strict";

const machine = (() => {
  const points = [];
  const most = 180;
  let timer = null;
  let before = null;
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function parse(text) {
    const out = {};
    for (const line of text.split("\n")) {
      const m = /^(colibri_\w+)(\{[^}]*\})?\s+(\S+)/.exec(line);
      if (m) out[m[1] + (m[2] || "")] = Number(m[3]);
    }
    return out;
  }

  const bytes = (n) => n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(2)} GiB` : `${(n / 2 ** 20).toFixed(1)} MiB`;
  const percent = (x) => `${(100 * x).toFixed(1)} %`;

  function figures(values) {
    const list = byId("figures");
    list.replaceChildren();
    for (const [name, value] of values) {
      const row = document.createElement("div");
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      row.append(dt, dd);
      list.append(row);
    }
  }

  function curve(context, values, top, color, width, height) {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.beginPath();
    values.forEach((v, i) => {
      const x = (i / Math.max(1, most - 1)) * width;
      const y = height - 4 - (v / top) * (height - 8);
      if (i) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
  }

  function draw() {
    const canvas = byId("chart");
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    const memory = points.map((p) => p.memory);
    const top = Math.max(1, ...memory) * 1.1;
    curve(context, memory, top, css("--soft"), canvas.width, canvas.height);
    curve(context, points.map((p) => p.hit), 1, css("--accent"), canvas.width, canvas.height);
    const last = points[points.length - 1];
    canvas.setAttribute("aria-label", `hit rate ${percent(last.hit)}, memory ${bytes(last.memory)}`);
  }

  function heat(map) {
    byId("experts").hidden = !map.layers;
    if (!map.layers) return;
    const canvas = byId("heat");
    canvas.width = map.experts;
    canvas.height = map.layers;
    const context = canvas.getContext("2d");
    const image = context.createImageData(map.experts, map.layers);
    const rows = byId("heat-rows");
    rows.replaceChildren();
    let all = 0;
    map.map.forEach((row, layer) => {
      let n = 0;
      for (let e = 0; e < map.experts; e++) {
        const there = row[e] === "1";
        n += there;
        image.data.set(there ? [11, 110, 95, 255] : [190, 196, 200, 90], 4 * (layer * map.experts + e));
      }
      all += n;
      const tr = document.createElement("tr");
      for (const text of [layer, n, map.experts]) {
        const td = document.createElement("td");
        td.textContent = String(text);
        tr.append(td);
      }
      rows.append(tr);
    });
    context.putImageData(image, 0, 0);
    canvas.setAttribute("aria-label", `${all} of ${map.layers * map.experts} experts are in memory`);
  }

  async function look(headers) {
    const [text, map] = await Promise.all([
      fetch("metrics", { headers }).then((r) => r.ok ? r.text() : ""),
      fetch("residency", { headers }).then((r) => r.ok ? r.json() : { layers: 0 }),
    ]);
    const m = parse(text);
    const hits = m.colibri_expert_hits_total || 0;
    const misses = m.colibri_expert_misses_total || 0;
    const since = before ? { hits: hits - before.hits, misses: misses - before.misses } : { hits, misses };
    before = { hits, misses };
    const used = since.hits + since.misses;
    const hit = used ? since.hits / used : points.length ? points[points.length - 1].hit : 0;
    const memory = m.colibri_process_resident_bytes || 0;
    points.push({ hit, memory });
    if (points.length > most) points.shift();
    figures([
      ["Generating", m.colibri_requests_running ?? 0],
      ["Tokens per second", (m.colibri_generated_tokens_per_second ?? 0).toFixed(1)],
      ["Reading prompts", m.colibri_requests_reading ?? 0],
      ["Waiting", m.colibri_requests_waiting ?? 0],
      ["Tokens generated", m.colibri_tokens_generated_total ?? 0],
      ["Prompt tokens reused", m.colibri_prompt_tokens_reused_total ?? 0],
      ["Expert hit rate, now", map.layers ? percent(hit) : "no experts"],
      ["Memory", bytes(memory)],
      ["KV cache in use", bytes(m.colibri_kv_used_bytes || 0)],
    ]);
    draw();
    heat(map);
  }

  return {
    start(headers) {
      if (timer) return;
      const tick = () => look(headers()).catch(() => {});
      tick();
      timer = setInterval(tick, 1000);
    },
    stop() {
      clearInterval(timer);
      timer = null;
    },
  };
})();
