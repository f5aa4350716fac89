/* An expert policy in Lua: the functions of a section [foreign.NAME], answered by the script that the variable LUA_POLICY
 * names.
 *
 *     cc -O2 -shared -fPIC lua_policy.c $(pkg-config --cflags --libs lua5.4) -o lua_policy.so
 *
 * The library knows nothing of Colibri. Each instance of the policy (a pool of slots, a cell of a simulation) has an
 * interpreter of its own. A script that fails has no opinion: NaN, for which Colibri takes its own choice and counts it.
 * No locks: Colibri calls into a foreign library from one thread at a time. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <lauxlib.h>
#include <lualib.h>

#define MAX_INSTANCES 1024 /* numbers are used again */

static lua_State *instances[MAX_INSTANCES];

/* Says what went wrong and clears the stack. */
static void complain(lua_State *lua, const char *what)
{
    fprintf(stderr, "lua_policy: %s: %s\n", what, lua_tostring(lua, -1));
    lua_settop(lua, 0);
}

/* The instance is made, or begins anew: so does its script. */
void reset(uint32_t instance)
{
    const char *script = getenv("LUA_POLICY");
    if (instance >= MAX_INSTANCES)
        return;
    if (instances[instance])
        lua_close(instances[instance]);
    lua_State *lua = instances[instance] = luaL_newstate();
    if (!lua)
        return;
    luaL_openlibs(lua);
    if (!script)
        fprintf(stderr, "lua_policy: LUA_POLICY names no script\n");
    else if (luaL_dofile(lua, script))
        complain(lua, script);
}

/* The instance's interpreter with the function on its stack, and the expert; NULL if the script has none. */
static lua_State *begin(uint32_t instance, const char *function, uint32_t layer, uint32_t expert)
{
    lua_State *lua = instance < MAX_INSTANCES ? instances[instance] : NULL;
    if (!lua)
        return NULL;
    lua_settop(lua, 0);
    if (lua_getglobal(lua, function) != LUA_TFUNCTION)
        return NULL;
    lua_pushinteger(lua, layer);
    lua_pushinteger(lua, expert);
    return lua;
}

void on_use(uint32_t instance, uint32_t layer, uint32_t expert, double gate)
{
    lua_State *lua = begin(instance, "on_use", layer, expert);
    if (!lua)
        return;
    lua_pushnumber(lua, gate);
    if (lua_pcall(lua, 3, 0, 0))
        complain(lua, "on_use");
}

double score(uint32_t instance, uint32_t layer, uint32_t expert, uint64_t age, uint64_t uses)
{
    lua_State *lua = begin(instance, "score", layer, expert);
    if (!lua)
        return NAN;
    lua_pushinteger(lua, (lua_Integer)age);
    lua_pushinteger(lua, (lua_Integer)uses);
    if (lua_pcall(lua, 4, 1, 0)) {
        complain(lua, "score");
        return NAN;
    }
    int is_number = 0;
    const double result = lua_tonumberx(lua, -1, &is_number);
    return is_number ? result : NAN;
}
