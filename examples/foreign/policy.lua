-- An expert policy in Lua, called through lua_policy.c: worth is the weight that the router gave an expert lately.
-- The expert with the lowest score leaves memory first.

local heat, when, clock = {}, {}, 0
local half_life = 2000 -- uses, of any expert

local function cooled(key)
  return (heat[key] or 0) * 0.5 ^ ((clock - (when[key] or clock)) / half_life)
end

function on_use(layer, expert, gate)
  clock = clock + 1
  local key = layer << 32 | expert
  heat[key] = cooled(key) + gate
  when[key] = clock
end

function score(layer, expert, age, uses)
  return cooled(layer << 32 | expert)
end
