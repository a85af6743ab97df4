// The client tarantool-driver on a space `orders` (id, what): what each call is answered.
"use strict";
const Tarantool = require("tarantool-driver");

const told = {};
const client = new Tarantool({
  host: "127.0.0.1",
  port: Number(process.argv[2]),
  username: "alice",
  password: "wonder",
  lazyConnect: true,
});

async function note(what, answer) {
  told[what] = await answer.catch((error) => "error: " + error.message);
}

async function main() {
  await client.connect();
  await note("ping", client.ping());
  await note("insert", client.insert("orders", [1, "bolts"]));
  await note("replace", client.replace("orders", [2, "nuts"]));
  await note("all", client.select("orders", 0, 10, 0, "all", []));
  await note("one", client.select("orders", "primary", 10, 0, "eq", [1]));
  await note("update", client.update("orders", "primary", [1], [["=", 1, "long"]]));
  await note("upsert", client.upsert("orders", [["=", 1, "x"]], [3, "gears"]));
  await note("delete", client.delete("orders", "primary", [2]));
  await note("again", client.insert("orders", [1, "again"]));
  await note("nowhere", client.select("nowhere", 0, 1, 0, "all", []));
  await note("undefined", client.call("nothing"));
  await note("eval", client.eval("return 1"));
  await note("sql", client.sql("SELECT 1"));
  await Promise.all([...Array(200).keys()].map((n) => client.replace("orders", [100 + n, "row " + n])));
  await note("after", client.select("orders", 0, 3, 0, "gt", [100]));
  await note("count", client.select("orders", 0, 1000, 0, "all", []).then((found) => found.length));
  client.disconnect();
  console.log(JSON.stringify(told));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
