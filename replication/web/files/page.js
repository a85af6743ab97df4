"use strict";
// The page of a server: what it tells by server-sent events, shown. Whatever comes from the server
// goes into the page as text, with control characters and marks of the direction of writing shown
// as escapes; nothing of it is markup.

const KEPT = 600;             // looks that the charts show at most
const LEAST = 60;             // and at least, as far as there are so many
const SILENT_SECONDS = 15;    // after so long without an event the page says that it is old
const SHOWN_NODES = 8;        // of one side of the map
const SHOWN_LINES = 6;        // of one chart
const SHOWN_ROWS = 6;         // of one table where a row is a list, until all are asked for
const NARROW = 700;           // pixels; below the map stands upright
const ODD = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const byId = (id) => document.getElementById(id);
const text = (value) => String(value ?? "").replace(
  ODD, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
const number = (value, digits = 0) => Number(value).toLocaleString(
  "en", { maximumFractionDigits: digits });
const cut = (value, letters) => {
  const whole = text(value);
  return whole.length <= letters ? whole : whole.slice(0, letters - 1) + "…";
};

function bytes(count) {
  let size = Number(count);
  if (!(size >= 1024)) return `${number(size)} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    size /= 1024;
    if (size < 1024) return `${size.toFixed(1)} ${unit}`;
  }
  return `${(size / 1024).toFixed(1)} TiB`;
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 10) return `${Number(value).toFixed(2)} s`;
  if (value < 60) return `${Number(value).toFixed(0)} s`;
  if (value < 3600) return `${(value / 60).toFixed(1)} min`;
  return value < 86400 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} d`;
}

const rate = (value) => value < 100 ? number(value, 1) : number(value);
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
const vclock = (map) => "{" + Object.entries(map ?? {}).map((one) => one.join(": ")).join(", ") + "}";

// An element with attributes and children; a child that is no element is text.
function element(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "path", "text", "line", "title"].includes(name);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map((one) => one instanceof Node ? one : text(one)));
  return made;
}

function setText(node, value) {
  const wanted = text(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

// --- tables --------------------------------------------------------------------------------------

function allButton(place) {
  const made = element("button", { type: "button", "aria-expanded": "false" });
  made.addEventListener("click", () => {
    made.setAttribute("aria-expanded", place.classList.toggle("all"));
    nameAll(made);
  });
  return made;
}

function nameAll(button) {
  const isAll = button.getAttribute("aria-expanded") === "true";
  setText(button, isAll ? "Show fewer" : `Show all ${button.dataset.rows}`);
}

// A cell is a text, or [text, class]. Only what has changed is touched, so that a marked text stays
// marked.
function fill(place, columns, rows, empty, more = 0) {
  let table = place.querySelector("table");
  const note = place.querySelector("p") ?? place.appendChild(element("p", { class: "soft" }));
  setText(note, rows.length ? (more > 0 ? `${number(more)} more are not shown` : "") : empty);
  note.hidden = rows.length > 0 && more <= 0;
  const all = place.querySelector("button") ?? place.appendChild(allButton(place));
  all.hidden = rows.length <= SHOWN_ROWS;
  all.dataset.rows = number(rows.length);
  nameAll(all);
  if (!rows.length) { table?.remove(); return; }
  if (!table) {
    // The roles stay where a narrow screen shows rows as blocks.
    const head = element("tr", { role: "row" }, ...columns.map(([name, kind]) =>
      element("th", { scope: "col", role: "columnheader", class: kind ?? "" }, name)));
    table = element("table", { role: "table" }, element("thead", { role: "rowgroup" }, head),
      element("tbody", { role: "rowgroup" }));
    place.prepend(table);
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] ?? body.appendChild(element("tr",
      { role: "row", class: at < SHOWN_ROWS ? "" : "more" }));
    cells.forEach((cell, index) => {
      const [value, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const shown = row.cells[index]
        ?? row.appendChild(element("td", { role: "cell", "data-of": columns[index][0] }));
      const name = `${columns[index][1] ?? "text"} ${kind}`.trim();
      if (shown.className !== name) shown.className = name;
      setText(shown, value);
    });
  });
}

const stateClass = (one) => one.state === "following" ? "good"
  : (one.state === "waiting" || one.state === "stopped") && one.last_error ? "bad" : "warn";

// What needs a look comes first: the others may not be shown at once.
const BY_CLASS = ["bad", "warn", "good"];
const upstreamsOf = (status) => [...(status.sources ?? [])].sort((one, other) =>
  BY_CLASS.indexOf(stateClass(one)) - BY_CLASS.indexOf(stateClass(other)));

function followersOf(status) {
  const replicas = (status.replicas ?? []).map((one) => ({
    name: one.instance, scheme: "tarantool", peer: one.peer, lag: one.lag_rows, unit: "rows",
    position: vclock(one.acknowledged) }));
  const streams = (status.streams ?? []).filter((one) => one.peer).map((one) => ({
    name: one.name || one.peer, scheme: "tap", peer: one.peer, lag: one.unacknowledged,
    unit: "packets", position: one.acknowledged ? vclock(one.acknowledged) : "" }));
  return [...replicas, ...streams, ...(status.readers ?? [])];
}

function tables(status, sample) {
  const at = (name) => document.querySelector(`[data-table="${name}"]`);
  const per = (name) => sample[name] === undefined ? "" : rate(sample[name]);
  fill(at("upstreams"), [["upstream"], ["state"], ["lag", "number"], ["rows/s", "number"],
    ["rows", "number"], ["position"], ["last error"]], upstreamsOf(status).map((one) => [
    one.url, [one.state, stateClass(one)], seconds(one.lag_seconds), per(`rate ${one.url}`),
    number(one.rows), one.position,
    [Object.entries(one.stopped_parts ?? {}).map((part) => part.join(": ")).join("; ")
      || one.last_error, ""]]),
  "No upstream is followed: serve --follow URL names one.");
  fill(at("followers"), [["follower"], ["protocol"], ["from"], ["lag", "number"], ["position"]],
    followersOf(status).map((one) => [one.name, one.scheme, one.peer,
      [`${number(one.lag)} ${one.unit}`, one.lag ? "warn" : ""], one.position]),
    "Nobody follows this server.");
  fill(at("keepers"), [["kept for"], ["bytes", "number"], ["oldest log"],
    ["written last before", "number"]], (status.log_keepers ?? []).map((one) => [
    `${one.kind} ${one.name}`, [bytes(one.bytes), one.bytes ? "warn" : ""], one.oldest_log ?? "",
    seconds(one.age_seconds)]), "No log is kept longer than snapshots need it.");
  fill(at("spaces"), [["space"], ["id", "number"], ["engine"], ["tuples", "number"],
    ["bytes", "number"], ["indexes"]], (status.spaces ?? []).map((one) => [one.name, one.id,
    one.engine, number(one.tuples), bytes(one.bytes), one.indexes.join(", ")]),
  "The store has no space yet.");
  fill(at("protocols"), [["protocol"], ["address"], ["connections", "number"],
    ["requests/s", "number"], ["received/s", "number"], ["sent/s", "number"]],
  (status.traffic ?? []).map((one) => {
    const of = (what) => sample[`rate ${one.scheme} ${what}`] ?? 0;
    const urls = (status.listeners ?? []).filter((each) => each.url.startsWith(`${one.scheme}://`));
    return [one.scheme, urls.map((each) => each.url).join(" "), number(one.connections),
      rate(of("requests")), bytes(of("received_bytes")), bytes(of("sent_bytes"))];
  }), "Nothing is listened on.");
  fill(at("errors"), [["time"], ["what"], ["where"], ["why"], ["what to do"], ["times", "number"]],
    (status.errors ?? []).map((one) => [clock(Date.parse(one.time) / 1000),
      [one.event, one.level === "error" ? "bad" : "warn"], one.where, one.why, one.hint,
      number(one.times)]), "No warning and no error since the server began.");
}

function header(status, time) {
  const name = (status.path ?? "").split("/").pop() || "logweir";
  setText(byId("name"), name);
  const title = `${text(name)} · logweir`;
  if (document.title !== title) document.title = title;
  const failed = status.state !== "running";
  byId("state").className = failed ? "bad" : "good";
  setText(byId("state"), failed ? `${status.state}: ${status.error}` : status.state);
  const memory = status.memory ?? {};
  const held = (memory.unfinished_frames_bytes ?? 0) + (memory.requests_bytes ?? 0)
    + (memory.answers_bytes ?? 0);
  const facts = [["instance", status.instance], ["program", status.program],
    ["vclock", vclock(status.vclock)], ["rows in all", number(status.signature)],
    ["durability", status.durability], ["running for", seconds(status.uptime_seconds)],
    ["connections", number(status.connections)],
    ["memory of connections", `${bytes(held)} of ${bytes(memory.limit_bytes)}`],
    ["log files", number(status.log_files)], ["guests may", status.guest_may || "nothing"],
    ["failed logins", number(status.failed_logins)], ["as of", clock(time)]];
  const list = byId("facts");
  facts.forEach(([key, value], at) => {
    const pair = list.children[at]
      ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(pair.firstChild, key);
    setText(pair.lastChild, value);
  });
}

// --- topology ------------------------------------------------------------------------------------

function sides(status) {
  const upstreams = upstreamsOf(status).map((one) => {
    const [scheme, where] = one.url.split("://");
    const lag = one.lag_seconds === null ? "" : ` · ${seconds(one.lag_seconds)}`;
    return { name: where, note: scheme, edge: one.state + lag, kind: stateClass(one),
      away: one.state !== "following" };
  });
  const followers = followersOf(status);
  const known = followers.map((one) => ({ name: one.name, note: `${one.scheme} ${one.peer}`,
    edge: one.lag ? `${number(one.lag)} ${one.unit} behind` : "up to date",
    kind: one.lag ? "warn" : "good" }));
  // Others are connections only: they follow nothing, or it has no position.
  const others = (status.traffic ?? []).map((one) => {
    const shown = followers.filter((each) => each.scheme === one.scheme).length;
    return { name: `${number(one.connections - shown)} connection${one.connections - shown === 1 ? "" : "s"}`,
      note: one.scheme, edge: "", kind: "", count: one.connections - shown };
  }).filter((one) => one.count > 0 && !OWN.includes(one.note));
  return [few(upstreams), few([...known, ...others])];
}

const few = (nodes) => nodes.length <= SHOWN_NODES ? nodes : [...nodes.slice(0, SHOWN_NODES - 1),
  { name: `${number(nodes.length - SHOWN_NODES + 1)} more`, note: "in the tables below", edge: "",
    kind: "" }];

const BOX = 46;
const STEP = 62;

function box(x, y, width, node, kind = "") {
  const letters = (each) => Math.floor((width - 20) / each);
  const made = element("g", { class: kind }, element("title", {}, `${node.name} ${node.note}`),
    element("rect", { x, y, width, height: BOX, rx: 4 }),
    element("text", { x: x + 10, y: y + 19, class: "strong" }, cut(node.name, letters(8.6))),
    element("text", { x: x + 10, y: y + 36, class: "soft" }, cut(node.note, letters(7.6))));
  return made;
}

function edge(path, node, x, y, anchor = "middle") {
  const away = node.away ? " away" : "";
  return [element("path", { d: path, class: node.kind + away }),
    element("text", { x, y, class: `${node.kind} halo`, "text-anchor": anchor }, node.edge)];
}

let drawn = "";

function topology(status) {
  const [upstreams, followers] = sides(status);
  const svg = byId("map");
  const width = Math.max(svg.clientWidth || svg.parentNode.clientWidth, 280);
  const key = JSON.stringify([upstreams, followers, width, status.path, status.signature]);
  if (key === drawn) return;
  drawn = key;
  const name = (status.path ?? "").split("/").pop() || "this store";
  const here = { name, note: `${number(status.signature)} rows` };
  const draw = width < NARROW ? upright : across;
  const [height, parts] = draw(width, upstreams, here, followers);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(...parts);
  const told = (nodes) => nodes.map((one) => [one.name, one.note, one.edge].filter(Boolean)
    .join(", ")).join("; ") || "none";
  setText(byId("map-text"), `${name}. Upstreams: ${told(upstreams)}. Followers: ${told(followers)}.`);
}

function across(width, upstreams, here, followers) {
  const most = Math.max(upstreams.length, followers.length, 1);
  const height = most * STEP + 8;
  const wide = Math.min(260, Math.floor(width * 0.27));
  const middle = (height - BOX) / 2;
  const left = (width - wide) / 2;
  const place = (nodes, at) => height / 2 + (at - (nodes.length - 1) / 2) * STEP;
  const parts = [];
  const labels = [];
  const sideOf = (nodes, x, from, to, empty) => {
    if (!nodes.length) {
      parts.push(element("text", { x: x + wide / 2, y: height / 2 + 4, class: "soft",
        "text-anchor": "middle" }, empty));
    }
    nodes.forEach((node, at) => {
      const y = place(nodes, at);
      const [start, end] = [from(y), to(y)];
      const half = (start[0] + end[0]) / 2;
      const isLeft = x < left;  // its label is beside its own box, where labels are apart
      const [line, label] = edge(`M${start} C${half},${start[1]} ${half},${end[1]} ${end}`, node,
        isLeft ? x + wide + 8 : x - 8, y > height / 2 + 1 ? y + 15 : y - 5,
        isLeft ? "start" : "end");
      parts.push(line);
      labels.push(label);
      parts.push(box(x, y - BOX / 2, wide, node));
    });
  };
  const spread = (y) => height / 2 + (y - height / 2) * 0.3 * BOX / Math.max(height, 1);
  sideOf(upstreams, 1, (y) => [wide + 1, y], (y) => [left, spread(y)], "no upstream");
  sideOf(followers, width - wide - 1, (y) => [left + wide, spread(y)], (y) => [width - wide - 1, y],
    "no follower");
  parts.push(box(left, middle, wide, here, "here"));
  return [height, [...parts, ...labels]];
}

function upright(width, upstreams, here, followers) {
  const parts = [];
  let y = 4;
  const gutter = 26;
  const list = (nodes, toward, empty) => {
    if (!nodes.length) {
      parts.push(element("text", { x: gutter, y: y + 14, class: "soft" }, empty));
      y += 26;
    }
    for (const node of nodes) {
      parts.push(...edge(`M${gutter},${y + BOX / 2} H10 V${toward}`, node, width - 2, y + BOX + 14,
        "end"), box(gutter, y, width - gutter - 1, node));
      y += STEP + 6;
    }
  };
  const store = 4 + (upstreams.length ? upstreams.length * (STEP + 6) : 26);
  list(upstreams, store, "no upstream");
  parts.push(box(1, store, width - 2, here, "here"));
  y = store + STEP;
  list(followers, store + BOX, "no follower");
  return [y + 4, parts];
}

// --- charts --------------------------------------------------------------------------------------

let times = [];
let series = {};

function remember(time, sample) {
  times.push(time);
  for (const name of Object.keys(sample)) series[name] ??= Array(times.length - 1).fill(null);
  for (const [name, values] of Object.entries(series)) {
    values.push(sample[name] ?? null);
    if (values.length > KEPT) values.shift();
    if (values.every((one) => one === null)) delete series[name];
  }
  if (times.length > KEPT) times.shift();
}

const span = () => Math.max(LEAST, times.length);  // looks from one side of a chart to the other

const OWN = ["web", "metrics"];  // what watching itself costs is in the tables only

const lines = (pattern) => Object.keys(series).map((name) => [name, name.match(pattern)?.[1]])
  .filter(([, found]) => found !== undefined && !OWN.includes(found));

const CHARTS = [
  ["Changes", rate, "a second", () => [["rate rows", "rows"], ["rate commits", "commits"],
    ["rate syncs", "syncs"]].filter(([name]) => name in series)],
  ["Requests", rate, "a second", () => lines(/^rate (\S+) requests$/)],
  ["Received", bytes, "a second", () => lines(/^rate (\S+) received_bytes$/)],
  ["Sent", bytes, "a second", () => lines(/^rate (\S+) sent_bytes$/)],
  ["Lag behind upstreams", seconds, "", () => lines(/^lag (.*)$/)],
  ["Lag of followers", (value) => number(value), "rows", () => lines(/^behind (.*)$/)],
  ["Position", (value) => number(value), "rows in all", () => [["position", "rows"]]],
  ["Memory of connections", bytes, "", () => [["memory", "held"]]],
];

class Chart {
  constructor([title, show, unit, choose]) {
    Object.assign(this, { show, choose, title, at: null });
    this.now = element("span", { class: "soft" });
    this.svg = element("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.scale = element("div", { class: "scale", "aria-hidden": "true" }, element("span"),
      element("span"));
    this.ends = element("div", { class: "ends", "aria-hidden": "true" }, element("span"),
      element("span"));
    this.legend = element("ul", { class: "legend" });
    this.figure = element("figure", { tabindex: "0" },
      element("figcaption", {}, `${title}${unit ? ", " + unit : ""}`, this.now),
      element("div", { class: "plot" }, this.svg, this.scale), this.ends, this.legend);
    this.svg.addEventListener("pointermove", (event) => {
      const place = this.svg.getBoundingClientRect();
      this.look(Math.round((event.clientX - place.left) / place.width * (span() - 1)));
    });
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.figure.addEventListener("blur", () => this.look(null));
    this.figure.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60 }[event.key];
      if (step === undefined) { if (event.key === "Escape") this.look(null); return; }
      event.preventDefault();
      this.look((this.at ?? span() - 1) + step);
    });
  }

  look(at) {
    this.at = at === null ? null : Math.min(Math.max(at, span() - times.length), span() - 1);
    this.draw();
  }

  draw() {
    const first = span() - times.length;
    this.svg.setAttribute("viewBox", `0 0 ${span() - 1} 100`);
    const all = this.choose();
    const lasts = ([name]) => -Math.max(...series[name].filter((one) => one !== null), 0);
    const chosen = all.length <= SHOWN_LINES ? all
      : [...all].sort((one, other) => lasts(one) - lasts(other)).slice(0, SHOWN_LINES);
    const values = chosen.flatMap(([name]) => series[name]).filter((one) => one !== null);
    let [low, high] = [Math.min(0, ...values), Math.max(...values, 0)];
    if (this.title === "Position" && values.length) low = Math.min(...values);
    if (high <= low) high = low + 1;
    const y = (value) => 98 - (value - low) / (high - low) * 94;
    const parts = chosen.map(([name], line) => {
      let path = "";
      let isDown = false;
      series[name].forEach((value, at) => {
        if (value === null) { isDown = false; return; }
        path += `${isDown ? "L" : "M"}${first + at},${y(value).toFixed(1)}`;
        isDown = true;
      });
      return element("path", { d: path, class: `s${line % 6}${line > 2 ? " dashed" : ""}` });
    });
    if (this.at !== null) {
      parts.push(element("line", { x1: this.at, x2: this.at, y1: 0, y2: 100 }));
    }
    this.svg.replaceChildren(...parts);
    const [top, bottom] = this.scale.children;
    setText(top, this.show(high));
    setText(bottom, this.show(low));
    setText(this.ends.firstChild, times.length ? clock(times[0] - first * 1) : "");
    setText(this.ends.lastChild, times.length ? clock(times.at(-1)) : "");
    const at = (this.at ?? span() - 1) - first;
    setText(this.now, this.at === null || times[at] === undefined ? "" : `at ${clock(times[at])}`);
    this.name(chosen, at, all.length - chosen.length);
  }

  name(chosen, at, more) {
    const items = chosen.map(([name, label], line) => {
      const value = series[name][at];
      const mark = element("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" },
        element("path", { d: "M0,5H20", "stroke-width": 3,
          class: `s${line % 6}${line > 2 ? " dashed" : ""}` }));
      return element("li", {}, mark, `${cut(label, 48)} `, element("strong", {},
        value === null || value === undefined ? "–" : this.show(value)));
    });
    if (more > 0) items.push(element("li", { class: "soft" }, `${number(more)} lower ones`));
    if (!items.length) items.push(element("li", { class: "soft" }, "nothing to show"));
    this.legend.replaceChildren(...items);
  }
}

const charts = CHARTS.map((one) => new Chart(one));

// --- what comes ----------------------------------------------------------------------------------

let heard = Date.now();
let last = null;

function away(reason) {
  const banner = byId("banner");
  const since = last ? ` What is shown is of ${clock(last.time)}.` : "";
  setText(banner, `${reason}${since} The page tries again by itself.`);
  banner.hidden = false;
  document.body.classList.add("gone");
}

function back() {
  heard = Date.now();
  byId("banner").hidden = true;
  document.body.classList.remove("gone");
}

function show() {
  header(last.status, last.time);
  topology(last.status);
  tables(last.status, last.sample);
  for (const chart of charts) chart.draw();
}

function onLook(event) {
  const told = JSON.parse(event.data);
  back();
  if (told.failed) { away(`The server cannot look at itself: ${text(told.failed)}.`); return; }
  last = told;
  if (times.at(-1) !== told.time) remember(told.time, told.sample);
  show();
}

function onHistory(event) {
  const told = JSON.parse(event.data);
  times = told.times.slice(-KEPT);
  series = told.series;
  for (const name of Object.keys(series)) series[name] = series[name].slice(-KEPT);
}

function connect() {
  const events = new EventSource("events");
  events.addEventListener("history", onHistory);
  events.addEventListener("look", onLook);
  events.addEventListener("error", () => {
    away("The server does not answer.");
    if (events.readyState !== EventSource.CLOSED) return;  // it tries again by itself
    events.close();
    setTimeout(connect, 2000);  // it refused: it is asked again, as a browser would not
  });
}

byId("figures").append(...charts.map((one) => one.figure));
setInterval(() => {
  if (Date.now() - heard > SILENT_SECONDS * 1000) away("Nothing comes from the server.");
}, 1000);
addEventListener("resize", () => { if (last) { drawn = ""; topology(last.status); } });
connect();
