// The clients memcached (lines) and memjs (packets): what each call is answered.
"use strict";
const Memcached = require("memcached");
const memjs = require("memjs");

const port = Number(process.argv[2]);
const told = [];

async function lines() {
  const client = new Memcached("127.0.0.1:" + port, { retries: 0, timeout: 20000 });
  const ask = (name, ...values) =>
    new Promise((done) => client[name](...values, (error, value) => done(error ? String(error) : value)));
  const note = async (...call) => told.push([call[0], await ask(...call)]);
  await note("set", "a", "one", 0);
  await note("get", "a");
  await note("add", "a", "x", 0);
  await note("append", "a", "+");
  await note("prepend", "a", "-");
  await note("getMulti", ["a", "nope"]);
  await note("set", "n", 41, 0);
  await note("incr", "n", 1);
  await note("decr", "n", 2);
  await note("incr", "a", 1);
  await note("replace", "nope", "x", 0);
  await note("touch", "a", 100);
  await note("set", "object", { deep: [1, 2] }, 0);
  await note("get", "object");
  const { cas } = await ask("gets", "a");
  await note("cas", "a", "two", cas, 0);
  await note("cas", "a", "three", cas, 0);
  await note("del", "a");
  await note("del", "a");
  await note("get", "a");
  await note("set", "large", "x".repeat(500000), 0);
  told.push((await ask("get", "large")).length);
  for (const name of ["stats", "settings", "items", "slabs"]) {
    told.push([name, typeof (await ask(name))[0]]);
  }
  told.push(typeof (await ask("stats"))[0].curr_items);
  await note("flush");
  await note("get", "n");
  client.end();
}

async function packets() {
  const client = memjs.Client.create("127.0.0.1:" + port, { retries: 1, timeout: 20 });
  const note = async (name, ...values) => {
    told.push([name, await client[name](...values).catch((error) => String(error))]);
  };
  await note("set", "k", "v", {});
  await note("get", "k");
  await note("add", "k", "w", {});
  await note("replace", "k", "r", {});
  await note("append", "k", "+");
  await note("prepend", "k", "-");
  await note("get", "k");
  await note("increment", "c", 5, { initial: 1 });
  await note("increment", "c", 5, { initial: 1 });
  await note("decrement", "c", 2, {});
  await note("increment", "k", 1, {});
  await note("touch", "k", 100);
  await note("delete", "k");
  await note("delete", "k");
  await note("get", "k");
  await note("set", "bytes", Buffer.from([0, 1, 2, 255]), {});
  await note("get", "bytes");
  const items = () =>
    new Promise((done) => client.stats((error, host, found) => done(error || found.curr_items)));
  let count = await items();
  // A memcached counts what was flushed until a thread of its own has been at it, within a second.
  for (let tries = 0; count !== "2" && tries < 200; tries++) {
    await new Promise((done) => setTimeout(done, 50));
    count = await items();
  }
  told.push(["curr_items", count]);
  client.close();
}

lines()
  .then(packets)
  .then(() => console.log(JSON.stringify(told)))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
