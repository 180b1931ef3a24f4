"use strict";
const { version, summary, timeline } = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
// Rows that a table shows: of more, the page tells how many there are.
const ROWS = 500;
// Below this height in pixels ranks share a row of the picture.
const ROW = 14;

function time(us) {
    if (us === null || us === undefined) return "";
    if (us < 1000) return us + " us";
    return us < 1e6 ? (us / 1e3).toFixed(1) + " ms" : (us / 1e6).toFixed(2) + " s";
}

function memory(bytes) {
    if (bytes === null || bytes === undefined) return "";
    return bytes < 1 << 30 ? (bytes / (1 << 20)).toFixed(1) + " MiB" : (bytes / (1 << 30)).toFixed(2) + " GiB";
}

const cpu = rank => rank.cpu_user_us === undefined ? null : rank.cpu_user_us + rank.cpu_system_us;

// Control characters are shown as escapes, so that nothing is hidden by them.
function plain(text) {
    return String(text).replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
        char => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));
}

function element(name, text, style) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = plain(text);
    if (style) made.className = style;
    return made;
}

// Columns: [title, text of a row, whether it is a number].
function table(id, rows, columns) {
    const head = element("tr");
    for (const [title, , number] of columns) head.append(element("th", title, number ? "n" : ""));
    const made = [head];
    for (const row of rows.slice(0, ROWS)) {
        const line = element("tr");
        for (const [, text, number] of columns) line.append(element("td", text(row), number ? "n" : ""));
        made.push(line);
    }
    if (rows.length > ROWS) {
        const [line, rest] = [element("tr"), element("td", `and ${rows.length - ROWS} more`)];
        rest.colSpan = columns.length;
        line.append(rest);
        made.push(line);
    }
    at(id).replaceChildren(...made);
}

const ranks = timeline.ranks;
const hosts = Object.entries(timeline.hosts).map(([node, host]) => ({ node: Number(node), ...host }));
const nameOf = Object.fromEntries(hosts.map(host => [host.node, host.name]));
const end = Math.max(1, timeline.outcome ? timeline.outcome.at : 0, ...[0].concat(timeline.fences.map(f => f.released)),
    ranks.reduce((last, rank) => Math.max(last, rank.ended || rank.connected || rank.started || 0), 0));
const sum = (members, of) => members.reduce((all, rank) => of(rank) == null ? all : (all ?? 0) + of(rank), null);
const latest = (members, key) => members.reduce((last, rank) => Math.max(last, rank[key] || 0), 0) || null;

function how(rank) {
    if (rank.signal_name) return rank.signal_name;
    if (rank.signal) return "signal " + rank.signal;
    return rank.code === null || rank.code === undefined ? "" : "exit code " + rank.code;
}

function words() {
    document.title = "wireup: " + plain(timeline.job);
    at("title").textContent = "Launch " + plain(timeline.job);
    const outcome = timeline.outcome;
    const programs = timeline.apps.map(app => `${app.ranks} x ${app.program}`).join(", ");
    at("subtitle").textContent = plain(`${programs}; ${timeline.size} ranks on ${hosts.length} hosts; `
        + `offered: ${timeline.offered.join(", ") || "nothing"}; `
        + (outcome ? `${outcome.began} to ${outcome.ended}, exit code ${outcome.exit_code}` : "the record was cut off")
        + `; wireup ${timeline.wireup || version}` + (timeline.libpmix ? `; libpmix ${timeline.libpmix}` : ""));
    at("command").textContent = plain(timeline.command ?? "not recorded: an agent described this launch to its launcher");
    at("programs").replaceChildren(...timeline.apps.map(app => element("li",
        `${app.ranks} x ${app.command || app.program}${app.needs ? ": " + app.needs : ""}`)));
    at("summary").textContent = plain(summary.join("\n"));
    if (outcome && outcome.cause) {
        at("failure").hidden = false;
        at("cause").textContent = plain(outcome.cause.message);
        at("advice").textContent = plain(outcome.advice ?? "");
    }
    const spawns = timeline.spawns.map(spawn => element("li",
        `${time(spawn.at)}: ${spawn.parent ? "rank " + (spawn.parent.spawned_job ? spawn.parent.spawned_job + ":" : "") + spawn.parent.rank : "a tool"}`
        + ` spawned job ${spawn.spawned_job}, ${spawn.size} ranks of ${spawn.apps.map(app => app.command || app.program).join(", ")}`));
    at("spawned").hidden = spawns.length === 0;
    at("spawns").replaceChildren(...spawns);
    const warnings = timeline.warnings.map(([when, text]) => element("li", `${time(when)}: ${text}`));
    at("warned").hidden = warnings.length === 0;
    at("warnings").replaceChildren(...warnings);
}

function tables() {
    const members = new Map(hosts.map(host => [host.node, []]));
    for (const rank of ranks) members.get(rank.node)?.push(rank);
    const slowest = [...hosts].sort((a, b) => b.held_up - a.held_up || a.node - b.node);
    table("hosts", slowest, [
        ["host", host => host.name],
        ["ranks", host => members.get(host.node).length, true],
        ["joined", host => time(host.joined), true],
        ["last rank started", host => time(latest(members.get(host.node), "started")), true],
        ["last rank in contact", host => time(latest(members.get(host.node), "connected")), true],
        ["processor time", host => time(sum(members.get(host.node), cpu)), true],
        ["most memory of its ranks", host => memory(sum(members.get(host.node), rank => rank.rss_max)), true],
        ["last in fences", host => host.last, true],
        ["others waited for it", host => time(host.held_up), true],
    ]);
    table("fences", timeline.fences, [
        ["released", passed => time(passed.released), true],
        ["kind", passed => passed.kind],
        ["who", passed => passed.participants],
        ["ranks", passed => passed.ranks, true],
        ["hosts", passed => passed.nodes, true],
        ["first to last entry", passed => time(passed.spread_us), true],
        ["last entry to release", passed => time(passed.own_us), true],
        ["last", passed => passed.last.slice(0, 3).map(late => late.host
            + (late.rank ? ` (rank ${late.rank.rank})` : "") + (passed.nodes > 1 ? " +" + time(late.behind_us) : "")).join(", ")],
    ]);
    table("ranks", ranks, [
        ["rank", rank => rank.name],
        ["host", rank => nameOf[rank.node]],
        ["pid", rank => rank.pid ?? "", true],
        ["started", rank => time(rank.started), true],
        ["in contact", rank => time(rank.connected), true],
        ["finalized", rank => time(rank.finalized), true],
        ["ended", rank => time(rank.ended), true],
        ["processor time", rank => time(cpu(rank)), true],
        ["in the kernel", rank => time(rank.cpu_system_us), true],
        ["most memory", rank => memory(rank.rss_max), true],
        ["bound to", rank => rank.cpus ?? ""],
        ["how", rank => how(rank)],
        ["failure", rank => rank.cause ?? ""],
    ]);
}

// The part of the time that is shown.
let view = { from: 0, to: end };

// Ranks in the order of their hosts; a row of the picture has as many as there is no room for singly.
const ordered = [...ranks].sort((a, b) => a.node - b.node);
const rows = Math.min(ordered.length, 60) || 1;
const perRow = Math.max(1, Math.ceil(ordered.length / rows));
const labels = 130, axis = 22;

function draw() {
    const canvas = at("timeline");
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue("--" + name);
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, used = Math.ceil(ordered.length / perRow);
    const height = axis + ROW * Math.max(1, used);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    const ink = getComputedStyle(document.body).color;
    const x = us => labels + (us - view.from) / (view.to - view.from) * (width - labels);
    const clip = us => Math.min(width, Math.max(labels, x(us)));
    const bar = (row, of, index, from, to, name) => {
        if (from === null || from === undefined) return;
        const left = clip(from), top = axis + row * ROW + 1, share = (ROW - 2) / of;
        pen.fillStyle = colour(name);
        pen.fillRect(left, top + index * share, Math.max(clip(to) - left, 0.5), Math.max(share, 0.4));
    };
    for (let row = 0; row < used; row++) {
        const shown = ordered.slice(row * perRow, (row + 1) * perRow);
        shown.forEach((rank, index) => {
            const ended = rank.ended ?? end;
            bar(row, shown.length, index, rank.started, rank.connected ?? ended, "loads");
            bar(row, shown.length, index, rank.connected, rank.finalized ?? ended, "runs");
            bar(row, shown.length, index, rank.finalized, ended, "ends");
        });
        const first = shown[0], last = shown[shown.length - 1];
        const label = nameOf[first.node] + " " + (first === last ? first.name : first.name + "-" + last.name);
        pen.fillStyle = ink;
        pen.fillText(plain(label).slice(0, 22), 0, axis + row * ROW + 10, labels - 6);
    }
    pen.strokeStyle = colour("fence");
    for (const passed of timeline.fences) {
        const place = x(passed.released);
        if (place < labels || place > width) continue;
        pen.beginPath();
        pen.moveTo(place, axis);
        pen.lineTo(place, height);
        pen.stroke();
    }
    pen.fillStyle = ink;
    for (let tick = 0; tick <= 6; tick++) {
        const us = view.from + (view.to - view.from) * tick / 6;
        pen.textAlign = tick === 6 ? "right" : "left";
        pen.fillText(time(Math.round(us)), clip(us), 12);
    }
}

function follow() {
    const canvas = at("timeline");
    const timeAt = event => {
        const share = (event.offsetX - labels) / (canvas.clientWidth - labels);
        return view.from + Math.min(1, Math.max(0, share)) * (view.to - view.from);
    };
    let begun = null;
    canvas.addEventListener("mousedown", event => { begun = timeAt(event); });
    canvas.addEventListener("mouseup", event => {
        const ended = timeAt(event);
        if (begun !== null && Math.abs(ended - begun) > (view.to - view.from) / 200) {
            view = { from: Math.min(begun, ended), to: Math.max(begun, ended) };
            draw();
        }
        begun = null;
    });
    canvas.addEventListener("dblclick", () => { view = { from: 0, to: end }; draw(); });
    canvas.addEventListener("mousemove", event => {
        const row = Math.floor((event.offsetY - axis) / ROW);
        const shown = ordered.slice(row * perRow, (row + 1) * perRow);
        const who = shown.length === 0 ? "" : ` rank ${shown[0].name}`
            + (shown.length > 1 ? ` to ${shown[shown.length - 1].name}` : "") + ` on ${nameOf[shown[0].node]}`;
        at("hover").textContent = plain(time(Math.round(timeAt(event))) + who);
    });
    window.addEventListener("resize", draw);
    // The picture has the colours of the screen; paper has others.
    for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", draw);
}

words();
tables();
draw();
follow();
document.documentElement.dataset.ready = "true";
