"use strict";
const { version, breakdown, virtual_nodes, timeline } = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
// Maximum number of rows of a table; of further rows, the page shows the number.
const ROWS = 500;
// Height of a row of the picture, as in the style, and maximum number of rows: with more ranks, several share a row.
const ROW = 24, PICTURE_ROWS = 48;
// Ranks of the cause that have rows of their own in the picture.
const OWN_ROWS = 10;
const UNITS = [["s", 1e6, 3], ["ms", 1e3, 2], ["µs", 1, 0]];

// Texts for the identifiers of the record.
const WORDS = {
    __proto__: null,
    pmi: "PMI", pmix: "PMIx", connect: "connect", disconnect: "disconnect",
    pmi_barrier: "PMI barrier", pmi_node_barrier: "PMI barrier on one node", pmi_ring: "PMI ring",
    rank_failed: "failed", not_finalized: "exited without MPI_Finalize", never_joined: "exited without MPI_Init",
    left_others: "exited while others waited in a barrier", ran_alone: "ran without the others", aborted: "aborted",
    ended_by_rank: "ended by a rank", misbehaved: "violated the PMI protocol", not_started: "could not be started",
    pmix_server_failed: "PMIx server lost", node_failed: "host lost", cut_off: "host cut off", fence_failed: "fence failed",
    fence_timeout: "missing in a fence", timeout: "time limit reached", interrupted: "interrupted", output_lost: "output could not be written",
    refused: "refused", wireup_failed: "wireup failed",
};
const words = kind => WORDS[kind] ?? kind.replaceAll("_", " ");
// Ends that are consequences of other failures.
const CONSEQUENCES = ["job_ended", "ended_by_rank", "interrupted"];

const unitOf = us => UNITS.find(([, size]) => us >= size) ?? UNITS[2];

// Formats a time in its own unit, or in that of the largest of several.
function time(us, largest) {
    if (us == null) return "";
    const [name, size, digits] = unitOf(largest ?? us);
    return (us / size).toFixed(largest === undefined ? Math.max(0, digits - 1) : digits) + " " + name;
}

function memory(bytes, largest) {
    if (bytes == null) return "";
    return (largest ?? bytes) < 1 << 30 ? (bytes / (1 << 20)).toFixed(1) + " MiB" : (bytes / (1 << 30)).toFixed(2) + " GiB";
}

// Duration of a launch.
const duration = us => us < 1e5 ? time(us) : (us / 1e6).toFixed(2) + " s";

const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const cpu = rank => rank.cpu_user_us === undefined ? null : rank.cpu_user_us + rank.cpu_system_us;

// Control characters are shown as escapes, so that they hide no text.
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

const ranks = timeline.ranks;
const hosts = Object.entries(timeline.hosts).map(([node, host]) => ({ node: Number(node), ...host }));
const hostWord = virtual_nodes ? "virtual node" : "host";
const nameOf = Object.fromEntries(hosts.map(host => [host.node, host.name]));
const rankOf = new Map(ranks.map(rank => [rank.name, rank]));
const outcome = timeline.outcome, cause = outcome?.cause;
const end = Math.max(1, timeline.planned ?? 0, outcome ? outcome.at : 0, ...[0].concat(timeline.fences.map(f => f.released)),
    ranks.reduce((last, rank) => Math.max(last, rank.ended || rank.connected || rank.started || 0), 0));
const sum = (members, of) => members.reduce((all, rank) => of(rank) == null ? all : (all ?? 0) + of(rank), null);
const latest = (members, key) => members.reduce((last, rank) => Math.max(last, rank[key] || 0), 0) || null;
const nameIn = place => (place.spawned_job ? place.spawned_job + ":" : "") + place.rank;

// The ranks that the cause names come first, then those that failed by themselves.
const named = [cause?.rank == null ? [] : [cause], cause?.missing?.ranks ?? []].flat().map(nameIn);
const failed = new Set([...named.map(name => rankOf.get(name)).filter(Boolean),
    ...ranks.filter(rank => rank.cause && !CONSEQUENCES.includes(rank.cause))]);
const failedFirst = all => [...failed, ...all.filter(rank => !failed.has(rank))];

function link(name, text = "rank " + name) {
    const made = element("a", text);
    made.href = "#rank-" + encodeURIComponent(name);
    return made;
}

function how(rank) {
    if (rank.signal_name) return rank.signal_name;
    if (rank.signal) return "signal " + rank.signal;
    return rank.code == null ? "" : "exit code " + rank.code;
}

// Returns the outcome of the launch in the parts of a heading, and its style.
function verdict() {
    if (!outcome) return ["stopped", `Not finished: the record ends after ${duration(end)}`];
    // A policy may return 0 although a rank has ended the job.
    if (outcome.exit_code === 0) {
        const some = failed.size ? `, ${counted(failed.size, "rank")} failed` : "";
        return ["succeeded", `Succeeded: ${counted(timeline.size, "rank")} on ${counted(hosts.length, hostWord)}${some}, in ${duration(outcome.at)}`];
    }
    const own = named.map(name => rankOf.get(name)?.ended).filter(ended => ended != null);
    const after = `after ${duration(Math.min(timeline.ending ?? outcome.at, ...own))}`;
    if (!cause) return ["failed", `Failed: exit code ${outcome.exit_code}, ${after}`];
    const signal = outcome.signal_name ?? (cause.signal == null ? null : "signal " + cause.signal);
    if (cause.kind === "interrupted") return ["stopped", `Interrupted: ${signal ? signal + ", " : ""}${after}`];
    const ended = signal ?? (cause.code == null ? null : "exit code " + cause.code);
    const text = cause.kind === "rank_failed" && ended ? ended : words(cause.kind)
        + (cause.kind === "aborted" && cause.code != null ? " with code " + cause.code : "");
    const who = named.slice(0, 3).flatMap((name, index) => [index ? ", " : "", link(name)]);
    const more = (cause.missing?.count ?? named.length) - Math.min(named.length, 3);
    if (!named.length && cause.host) who.push(cause.host);
    if (more > 0) who.push(named.length ? ` and ${more} more` : counted(more, "rank"));
    return ["failed", "Failed: ", ...who, who.length ? ", " : "", `${text}, ${after}`];
}

function texts() {
    const [style, ...parts] = verdict();
    at("verdict").className = style;
    at("verdict").append(...parts.map(part => typeof part === "string" ? plain(part) : part));
    document.title = at("verdict").textContent;
    const facts = [...timeline.apps.map(app => `${app.ranks} x ${app.program}`), `${counted(timeline.size, "rank")} on ${counted(hosts.length, hostWord)}`,
        `offered: ${timeline.offered.map(words).join(", ") || "nothing"}`,
        ...outcome ? [`started ${outcome.began}`, `ended ${outcome.ended}`, `exit code ${outcome.exit_code}`] : ["the record was cut off"],
        `wireup ${timeline.wireup || version}`, ...timeline.libpmix ? [`libpmix ${timeline.libpmix}`] : []];
    facts[0] = `Launch ${timeline.job}: ${facts[0]}`;
    at("subtitle").replaceChildren(...facts.flatMap((fact, index) => [element("span", fact + (index < facts.length - 1 ? ";" : "")), " "]));
    at("command").textContent = plain(timeline.command ?? "not recorded: an agent described this launch to its launcher");
    at("programs").replaceChildren(...timeline.apps.map(app => element("li",
        `${app.ranks} x ${app.command || app.program}${app.needs ? ": " + app.needs : ""}`)));
    if (cause) {
        at("failure").hidden = false;
        at("failure").className = style === "stopped" ? style : "failed";
        at("cause").textContent = plain(cause.message);
        at("advice").textContent = plain(outcome.advice ?? "");
    }
    const spawns = timeline.spawns.map(spawn => {
        const made = element("li", `${time(spawn.at, end)}: `);
        made.append(spawn.parent ? link(nameIn(spawn.parent)) : "a tool", plain(` spawned job ${spawn.spawned_job}, `
            + `${counted(spawn.size, "rank")} of ${spawn.apps.map(app => app.command || app.program).join(", ")}`));
        return made;
    });
    at("spawned").hidden = spawns.length === 0;
    at("spawns").replaceChildren(...spawns);
    const warnings = timeline.warnings.map(([when, text]) => element("li", `${time(when, end)}: ${text}`));
    at("warned").hidden = warnings.length === 0;
    at("warnings").replaceChildren(...warnings);
}

// The critical path as a stacked bar, and as a list with its colours.
function path() {
    let own = 0;
    const largest = Math.max(...breakdown.parts.map(part => part.took));
    at("parts").closest("section").hidden = breakdown.parts.length === 0;
    for (const part of breakdown.parts) {
        const colour = `var(--${part.kind === "wireup" ? "wireup-" + own++ % 2 : part.kind})`;
        const [piece, line, swatch] = [element("span"), element("li"), element("span", "", "swatch")];
        piece.style.background = swatch.style.background = colour;
        piece.style.flexGrow = part.took;
        piece.hidden = part.took === 0;
        piece.title = plain(`${part.text}: ${time(part.took, largest)}`);
        line.append(swatch, element("span", time(part.took, largest), "n"), element("span", part.percent + " %", "n"), element("span", part.text, "text"));
        at("parts").append(piece);
        at("path").append(line);
    }
    at("parts").setAttribute("aria-label", plain("Where the time went: "
        + breakdown.parts.map(part => `${part.percent} % ${part.text}`).join("; ")));
    at("remarks").replaceChildren(...breakdown.remarks.map(text => element("li", text)));
}

// Moments have the unit of the whole launch, other numbers that of the largest in their column.
const FORMATS = { time, memory, moment: us => time(us, end), count: number => number ?? "" };
const compare = new Intl.Collator("en", { numeric: true }).compare;

// Creates a table that is first sorted by the column with this title, largest value on top. Columns: [title, value of a row, format of
// numbers, element of a cell in place of its text]. Returns a function that shows the row of an id, even if it is filtered out.
function table(id, rows, slowest, columns, idOf = () => "", first = all => all, marked = new Set()) {
    const made = at(id), section = made.closest("section"), name = section.querySelector("h2").textContent;
    const isEmpty = value => value == null || value === "" || value === 0;
    columns = columns.map(([title, of, format, content]) => ({ title, of, format, content }))
        .filter(({ of }) => rows.some(row => !isEmpty(of(row))));
    section.hidden = rows.length === 0;
    for (const column of columns.filter(({ format }) => format)) {
        const largest = rows.reduce((most, row) => Math.max(most, column.of(row) ?? 0), 0);
        column.text = row => FORMATS[column.format](column.of(row), largest);
    }
    const textOf = (column, row) => plain(column.text ? column.text(row) : column.of(row) ?? "");
    let by = columns.find(({ title }) => title === slowest) ?? columns[0], descending = by?.title === slowest, chosen = "";

    const [label, input, output, scroll] = [element("label", `Filter ${name.toLowerCase()}`, "filter"), element("input"), element("output"), element("div", undefined, "scroll")];
    input.type = "search";
    label.append(input);
    label.hidden = rows.length < 2;
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", name + ", can be scrolled");
    made.setAttribute("aria-label", name);
    made.replaceWith(scroll);
    section.append(label, " ", output, scroll);
    scroll.append(made);

    const [head, body] = [element("tr"), element("tbody")];
    made.createTHead().append(head);
    made.append(body);
    const titles = columns.map(column => {
        const [cell, button] = [element("th", undefined, column.format ? "n" : ""), element("button", column.title)];
        cell.scope = "col";
        cell.append(button);
        button.addEventListener("click", () => {
            descending = by === column ? !descending : Boolean(column.format);
            by = column;
            show();
        });
        head.append(cell);
        return cell;
    });
    const searched = new Map();
    const textsOf = row => {
        if (!searched.has(row)) searched.set(row, columns.map(column => textOf(column, row)).join(" ").toLowerCase());
        return searched.get(row);
    };
    function show() {
        const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        const value = row => by.of(row) ?? (by.format ? -1 : "");
        const order = by.format ? (a, b) => value(a) - value(b) : (a, b) => compare(value(a), value(b));
        const all = first([...rows].sort((a, b) => descending ? order(b, a) : order(a, b)))
            .filter(row => asked.every(word => textsOf(row).includes(word)));
        const shown = all.slice(0, ROWS);
        const more = chosen && all.find(row => idOf(row) === chosen);
        if (more && !shown.includes(more)) shown.unshift(more);
        const lines = shown.map(row => {
            const line = element("tr", undefined, [marked.has(row) && "failed", chosen && idOf(row) === chosen && "chosen"].filter(Boolean).join(" "));
            line.id = idOf(row);
            for (const column of columns) {
                const cell = element("td", column.content ? undefined : textOf(column, row), column.format ? "n" : "");
                if (column.content) cell.append(...column.content(row));
                line.append(cell);
            }
            return line;
        });
        if (all.length > shown.length) {
            const [line, rest] = [element("tr"), element("td", `and ${all.length - shown.length} more`)];
            rest.colSpan = columns.length;
            line.append(rest);
            lines.push(line);
        }
        titles.forEach((cell, index) => {
            if (columns[index] === by) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
            else cell.removeAttribute("aria-sort");
        });
        output.textContent = asked.length ? `${all.length} of ${rows.length}` : "";
        body.replaceChildren(...lines);
    }
    input.addEventListener("input", show);
    if (columns.length) show();
    return wanted => {
        input.value = "";
        chosen = wanted;
        show();
        const line = at(wanted);
        if (!line) return;
        line.tabIndex = -1;
        line.focus({ preventScroll: true });
        line.scrollIntoView({ block: "center" });
    };
}

function tables() {
    const members = new Map(hosts.map(host => [host.node, []]));
    for (const rank of ranks) members.get(rank.node)?.push(rank);
    at("hosts").closest("section").querySelector("h2").textContent = virtual_nodes ? "Virtual nodes" : "Hosts";
    table("hosts", hosts, "others waited for it", [
        [hostWord, host => host.name],
        ["ranks", host => members.get(host.node).length, "count"],
        ["joined", host => host.joined, "moment"],
        ["last rank started", host => latest(members.get(host.node), "started"), "moment"],
        ["last rank in contact", host => latest(members.get(host.node), "connected"), "moment"],
        ["processor time", host => sum(members.get(host.node), cpu), "time"],
        ["most memory of its ranks", host => sum(members.get(host.node), rank => rank.rss_max), "memory"],
        ["last in fences", host => host.last, "count"],
        ["others waited for it", host => host.held_up, "time"],
    ]);
    const late = passed => passed.last.slice(0, 3).flatMap((one, index) => [index ? "; " : "",
        one.rank ? link(nameIn(one.rank)) : "", one.rank && hosts.length === 1 ? "" : plain(one.rank ? " on " + one.host : one.host),
        passed.nodes > 1 && one.behind_us ? " +" + time(one.behind_us) : ""]);
    table("fences", timeline.fences, "took", [
        ["released", passed => passed.released, "moment"],
        ["kind", passed => words(passed.kind)],
        ["participants", passed => passed.participants === timeline.job + "[*]" ? "all ranks" : passed.participants],
        ["ranks", passed => passed.ranks, "count"],
        [hostWord + "s", passed => passed.nodes, "count"],
        ["took", passed => passed.spread_us + passed.own_us, "time"],
        ["first to last entry", passed => passed.spread_us, "time"],
        ["last entry to release", passed => passed.own_us, "time"],
        ["last", passed => late(passed).map(part => part.textContent ?? part).join(""), undefined, late],
    ]);
    const reveal = table("ranks", ranks, "lasted", [
        ["rank", rank => rank.name],
        [hostWord, rank => nameOf[rank.node]],
        ["failure", rank => !failed.has(rank) ? "" : words(!rank.cause || CONSEQUENCES.includes(rank.cause) ? cause.kind : rank.cause)],
        ["end", rank => how(rank)],
        ["lasted", rank => rank.started == null ? null : (rank.ended ?? end) - rank.started, "moment"],
        ["started", rank => rank.started, "moment"],
        ["in contact", rank => rank.connected, "moment"],
        ["finalized", rank => rank.finalized, "moment"],
        ["ended", rank => rank.ended, "moment"],
        ["processor time", cpu, "time"],
        ["in the kernel", rank => rank.cpu_system_us, "time"],
        ["most memory", rank => rank.rss_max, "memory"],
        ["bound to", rank => rank.cpus ?? ""],
        ["pid", rank => rank.pid, "count"],
    ], rank => "rank-" + rank.name, failedFirst, failed);
    const follow = () => {
        const wanted = decodeURIComponent(location.hash.slice(1));
        if (wanted.startsWith("rank-")) reveal(wanted);
    };
    window.addEventListener("hashchange", follow);
    follow();
}

// Part of the time that is shown.
let view = { from: 0, to: end };

// Ranks in the order of their hosts, after those of the cause. If there are too many, a row of the picture shows several ranks.
const own = [...failed].slice(0, OWN_ROWS);
const ordered = ranks.filter(rank => !own.includes(rank)).sort((a, b) => a.node - b.node);
const perRow = Math.max(1, Math.ceil(ordered.length / (PICTURE_ROWS - own.length)));
const rows = own.map(rank => [rank]);
for (let from = 0; from < ordered.length; from += perRow) rows.push(ordered.slice(from, from + perRow));

function rowName(shown) {
    const first = shown[0], last = shown[shown.length - 1];
    const where = first.node === last.node ? nameOf[first.node] : `${nameOf[first.node]} to ${nameOf[last.node]}`;
    return [first === last ? `rank ${first.name}` : `ranks ${first.name}–${last.name}`, hosts.length > 1 ? ` on ${where}` : ""];
}

// States of a rank, each with its start and end.
function states(rank) {
    const ended = rank.ended ?? end;
    return [["loads", rank.started, rank.loaded ?? ended], ["runs", rank.loaded, rank.finalized ?? ended], ["ends", rank.finalized, ended]]
        .filter(([, from, to]) => from != null && from < to);
}

function labels() {
    const drawn = new Set(ranks.flatMap(states).map(([state]) => state));
    for (const state of ["loads", "runs", "ends"]) document.querySelector(".legend ." + state).hidden = !drawn.has(state);
    document.querySelector(".legend .fence").hidden = timeline.fences.length === 0;
    document.querySelector(".legend .failed").hidden = failed.size === 0;
    at("labels").replaceChildren(...rows.map(shown => {
        const line = element("li", undefined, own.includes(shown[0]) ? "failed" : "");
        const [who, where] = rowName(shown);
        const made = link(shown[0].name, (line.className ? "✗ " : "") + who);
        made.append(element("span", where, "where"));
        line.append(made);
        line.title = plain(who + where);
        return line;
    }));
    at("timeline").setAttribute("aria-label", `Timeline of ${counted(ranks.length, "rank")} over ${duration(end)}; `
        + "the table of ranks has the same times. Keys: plus and minus zoom, left and right move, 0 shows all.");
}

const x = us => (us - view.from) / (view.to - view.from) * at("timeline").clientWidth;

// Round times with room for their labels, in one unit.
function ticks() {
    const width = at("timeline").clientWidth, share = width / (view.to - view.from);
    const [name, size] = unitOf(view.to);
    const label = (us, step) => (us / size).toFixed(Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9))) + " " + name;
    const room = step => Math.max(64, 12 + 8 * label(view.to, step).length);
    let step = 1;
    for (let grown = 0; step * share < room(step); grown++) step *= [2, 2.5, 2][grown % 3];
    const made = [];
    for (let tick = Math.ceil(view.from / step); tick * step <= view.to; tick++) made.push(tick * step);
    at("axis").replaceChildren(...made.filter(us => x(us) <= width - room(step) + 12).map(us => {
        const mark = element("span", label(us, step));
        // Paper has another width than the screen for which the picture was drawn.
        mark.style.left = x(us) / width * 100 + "%";
        return mark;
    }));
    return made;
}

function draw() {
    const canvas = at("timeline");
    const style = getComputedStyle(document.documentElement);
    const colours = {};
    const colour = name => colours[name] ??= style.getPropertyValue("--" + name);
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = ROW * Math.max(1, rows.length);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const clip = us => Math.min(width, Math.max(0, x(us)));
    const vertical = (us, from, to, wide, name) => {
        if (us < view.from || us > view.to) return;
        pen.fillStyle = colour(name);
        pen.fillRect(Math.min(x(us), width - wide), from, wide, to - from);
    };
    for (const us of ticks()) vertical(us, 0, height, 1, "line");
    rows.forEach((shown, row) => shown.forEach((rank, index) => {
        const share = (ROW - 6) / shown.length, top = row * ROW + 3 + index * share;
        for (const [state, from, to] of states(rank)) {
            if (to < view.from || from > view.to) continue;
            pen.fillStyle = colour(state);
            pen.fillRect(clip(from), top, Math.max(clip(to) - clip(from), 0.5), Math.max(share, 0.4));
        }
        if (failed.has(rank)) vertical(rank.ended ?? end, top - 2, top + Math.max(share, 1) + 2, 5, "failed");
    }));
    const seen = timeline.fences.filter(passed => passed.released >= view.from && passed.released <= view.to);
    pen.globalAlpha = Math.max(0.1, Math.min(1, width / 8 / (seen.length || 1)));
    for (const passed of seen) vertical(passed.released, 0, height, 2, "fence");
}

function look(from, to) {
    const span = Math.min(end, Math.max(to - from, 10));
    const begin = Math.max(0, Math.min(from, end - span));
    view = { from: begin, to: begin + span };
    draw();
}

function follow() {
    const canvas = at("timeline");
    const timeAt = event => view.from + Math.min(1, Math.max(0, event.offsetX / canvas.clientWidth)) * (view.to - view.from);
    const zoom = factor => {
        const [middle, half] = [(view.from + view.to) / 2, (view.to - view.from) / 2 * factor];
        look(middle - half, middle + half);
    };
    const move = share => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
    const acts = { in: () => zoom(0.5), out: () => zoom(2), earlier: () => move(-0.25), later: () => move(0.25), all: () => look(0, end) };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "all", Escape: "all" };
    for (const [id, act] of Object.entries(acts)) at(id).addEventListener("click", act);
    canvas.addEventListener("keydown", event => {
        if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
        event.preventDefault();
        acts[keys[event.key]]();
    });
    const tell = event => {
        const shown = rows[Math.floor(event.offsetY / ROW)];
        at("hover").textContent = plain(time(timeAt(event), end) + (shown ? ", " + rowName(shown).join("") : ""));
    };
    let begun = null;
    canvas.addEventListener("pointerdown", event => {
        begun = timeAt(event);
        canvas.setPointerCapture(event.pointerId);
        tell(event);
    });
    canvas.addEventListener("pointerup", event => {
        const ended = timeAt(event);
        if (begun !== null && Math.abs(ended - begun) > (view.to - view.from) / 50) look(Math.min(begun, ended), Math.max(begun, ended));
        begun = null;
    });
    canvas.addEventListener("pointercancel", () => { begun = null; });
    canvas.addEventListener("dblclick", acts.all);
    canvas.addEventListener("pointermove", tell);
    window.addEventListener("resize", draw);
    // The picture has the colours of the screen; paper has others.
    for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", draw);
}

texts();
path();
tables();
labels();
draw();
follow();
document.documentElement.dataset.ready = "true";
