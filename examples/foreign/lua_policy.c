/* An expert policy in Lua: score() and reset() for [foreign.NAME], answered by functions of the script that the
 * variable LUA_POLICY names.
 *
 *     cc -O2 -shared -fPIC lua_policy.c $(pkg-config --cflags --libs lua5.4) -o lua_policy.so
 *
 * The library knows nothing of Colibri. A script that fails is said to have no opinion: NaN, for which Colibri takes
 * its own choice and counts it. One interpreter serves all: Colibri calls into a foreign library from one thread at a
 * time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <lauxlib.h>
#include <lualib.h>

static lua_State *lua;

static int complain(const char *what)
{
    fprintf(stderr, "lua_policy: %s: %s\n", what, lua_tostring(lua, -1));
    lua_settop(lua, 0);
    return -1;
}

/* Called when a policy is made: the script starts anew. */
void reset(void)
{
    const char *script = getenv("LUA_POLICY");
    if (lua)
        lua_close(lua);
    lua = luaL_newstate();
    luaL_openlibs(lua);
    if (!script)
        fprintf(stderr, "lua_policy: LUA_POLICY names no script\n");
    else if (luaL_dofile(lua, script))
        complain(script);
}

static int push_function(const char *name)
{
    return lua && lua_getglobal(lua, name) == LUA_TFUNCTION;
}

void on_use(double layer, double expert, double gate)
{
    if (push_function("on_use")) {
        lua_pushinteger(lua, (lua_Integer)layer);
        lua_pushinteger(lua, (lua_Integer)expert);
        lua_pushnumber(lua, gate);
        if (lua_pcall(lua, 3, 0, 0))
            complain("on_use");
    }
    if (lua)
        lua_settop(lua, 0);
}

double score(double layer, double expert, double age, double uses)
{
    double result = NAN;
    if (push_function("score")) {
        lua_pushinteger(lua, (lua_Integer)layer);
        lua_pushinteger(lua, (lua_Integer)expert);
        lua_pushinteger(lua, (lua_Integer)age);
        lua_pushinteger(lua, (lua_Integer)uses);
        if (lua_pcall(lua, 4, 1, 0)) {
            complain("score");
            return NAN;
        }
        int is_number = 0;
        result = lua_tonumberx(lua, -1, &is_number);
        result = is_number ? result : NAN;
    }
    if (lua)
        lua_settop(lua, 0);
    return result;
}
