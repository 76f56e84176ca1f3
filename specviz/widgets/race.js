// The race: one prompt by several methods. Rows are methods, columns output positions; each
// method runs on its own recorded clock. Built on shared.js, which precedes this file.

const GLYPHS = ["●", "▲", "■", "◆", "✚", "★"];
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "5 2", "1 4"];
const RANKS = ["①", "②", "③"]; // the longest waits
const PACES = [6, 12, 24, 48, 96]; // seconds that the slowest lane takes on the screen

const times = (x) => `${x.toFixed(2)}×`;

// Number of entries of a sorted array that are at most t.
function upTo(sorted, t) {
	let low = 0, high = sorted.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (sorted[middle] <= t) low = middle + 1;
		else high = middle;
	}
	return low;
}

// One lane: its arrays, and its state at a given time.
class Lane {
	constructor(index, told, arrays, prefix) {
		Object.assign(this, told, { index, glyph: GLYPHS[index % GLYPHS.length] });
		for (const name of told.columns) this[name] = arrays[prefix + name];
		this.passes = this.end_time.length;
		this.first = new Int32Array(this.passes).fill(-1); // first token of each block
		this.at = new Map(); // output position -> all tokens ever placed there
		for (let i = 0; i < this.block.length; i++) {
			if (this.first[this.block[i]] < 0) this.first[this.block[i]] = i;
			const here = this.at.get(this.position[i]);
			if (here) here.push(i);
			else this.at.set(this.position[i], [i]);
		}
	}
	done(t) { return upTo(this.end_time, t); }
	standing(t) { const k = this.done(t); return k ? this.stands[k - 1] : 0; }
	finished(t) { return this.end !== "" && t >= this.finish; }
	token(position, t) { // the token at a position at time t, or -1
		const here = this.at.get(position) ?? [];
		for (let i = here.length - 1; i >= 0; i--) {
			const block = this.block[here[i]];
			if (this.end_time[block] <= t) return this.gone[here[i]] > t ? here[i] : -1;
		}
		return -1;
	}
	// The lane's activity at t: [phase, elapsed share of the block].
	doing(t, phases) {
		if (t < this.prefill) return ["prefill", t / this.prefill];
		const k = this.done(t);
		if (k >= this.passes) return [this.end ? "finished" : "cut off", 1];
		const width = this.end_time[k] - this.begin[k];
		let left = t - this.begin[k];
		for (const phase of phases) {
			left -= this[phase][k];
			if (left < 0) return [phase, width ? (t - this.begin[k]) / width : 1];
		}
		return ["rest", width ? (t - this.begin[k]) / width : 1];
	}
	passSentence(k, kinds) {
		const tokens = this.tokens[k], first = this.first[k];
		const words = [];
		for (let i = first; first >= 0 && i < first + tokens; i++) {
			const word = kinds[this.kind[i]].word, last = words[words.length - 1];
			if (last && last[0] === word) last[1]++;
			else words.push([word, 1]);
		}
		const came = words.map(([word, n]) => `${n} ${word}`).join(", ");
		const sent = this.sent[k] ? `; ${this.accepted[k]} of ${this.sent[k]} drafted accepted` : "";
		return `cycle ${this.cycle[k]} took ${ms(this.end_time[k] - this.begin[k])} and brought ${count(tokens, "token")} (${came}${sent})`;
	}
}

// Lanes ranked at t: finished lanes by time, then the others by number of tokens.
function ranking(lanes, t) {
	return [...lanes].sort((a, b) => {
		const over = b.finished(t) - a.finished(t);
		if (over) return over;
		if (a.finished(t)) return a.finish - b.finish || a.index - b.index;
		return b.standing(t) - a.standing(t) || a.index - b.index;
	});
}

function leaderSentence(field, lanes, t) {
	const [first, second] = ranking(lanes, t);
	const warn = field.comparable ? "" : " (the clocks are not comparable)";
	if (first.finished(t)) {
		const over = lanes.filter((lane) => lane.finished(t));
		if (over.length < lanes.length) return `${first.name} has finished after ${ms(first.finish)}${warn}.`;
		const rest = ranking(lanes, t).slice(1).map((lane) => `${lane.name} after ${ms(lane.finish)}`);
		return `${first.name} finished first, after ${ms(first.finish)}; ${rest.join(", ")}${warn}.`;
	}
	const lead = first.standing(t) - second.standing(t);
	if (!first.standing(t)) return `All are reading the prompt (prefill) or in their first cycle${warn}.`;
	if (!lead) {
		const level = lanes.filter((lane) => lane.standing(t) === first.standing(t)).map((lane) => lane.name);
		return `Tied at ${count(first.standing(t), "token")}${warn}: ${level.join("; ")}.`;
	}
	return `${first.name} leads with ${count(first.standing(t), "token")}, ${lead} ahead of ${second.name}${warn}.`;
}

// ---- the strip: lanes by output position

class Strip {
	constructor(kinds, phases, seek) {
		Object.assign(this, { kinds, phases, seek, rows: [], shown: [0, 0] });
		this.node = h("div.strip", { tabindex: "0", role: "group", "aria-label": "tokens by output position" });
		hear(this.node, "scroll", () => { if (!this.moving) this.held = true; this.window(); this.draw(this.t); });
	}
	open(field, lanes) {
		this.lanes = lanes;
		this.field = field;
		this.held = false;
		const most = Math.max(...lanes.map((lane) => lane.stands.length ? Math.max(...lane.stands) : 0));
		this.columns = most + 2;
		this.ruler = h("div.ruler");
		this.node.replaceChildren(h("div.row.head", h("div.who", field.across ?? "output position"), this.ruler));
		this.rows = lanes.map((lane) => {
			const track = h("div.track");
			const now = h("span.now");
			const who = h("div.who", h("b", { class: `l${lane.index % 6}` }, lane.glyph), h("span.name", lane.name), now);
			const head = h("div.runner", h("i"), h("span"));
			track.append(head);
			let part = null;
			if (lane.parts >= 0) {
				part = h("div.parts", { title: `from here the text is not ${this.base().name}'s` }, "≠");
				track.append(part);
			}
			this.node.append(h("div.row", who, track));
			return { lane, track, now, head, part, cells: new Map(), blocks: new Map() };
		});
		this.size();
		this.node.scrollLeft = 0;
		this.window();
	}
	base() { return this.lanes[this.field.baseline]; }
	size() { // the column width follows the font size
		const em = emOf(this.node);
		this.cell = Math.round(em * 5.2);
		this.node.style.setProperty("--cell", `${this.cell}px`);
		this.node.style.setProperty("--columns", this.columns);
		for (const row of this.rows ?? []) {
			for (const [position, cell] of row.cells) cell.node.style.left = `${position * this.cell}px`;
			for (const [k, node] of row.blocks) this.placeBlock(row.lane, k, node);
			if (row.part) row.part.style.left = `${row.lane.parts * this.cell}px`;
		}
		this.shown = [0, 0];
	}
	window() { // visible columns, with a margin
		const width = this.node.clientWidth || 900;
		const from = Math.max(0, Math.floor(this.node.scrollLeft / this.cell) - 6);
		const to = Math.min(this.columns, Math.ceil((this.node.scrollLeft + width) / this.cell) + 6);
		if (from === this.shown[0] && to === this.shown[1]) return;
		this.shown = [from, to];
		const marks = [];
		for (let p = from; p < to; p++) marks.push(h("span", { style: `left:${p * this.cell}px`, class: p % 5 ? "" : "five" }, String(p)));
		this.ruler.replaceChildren(...marks);
		for (const row of this.rows) {
			for (const [p, cell] of row.cells) if (p < from || p >= to) { cell.node.remove(); row.cells.delete(p); }
			for (const [k, node] of row.blocks) { node.remove(); row.blocks.delete(k); }
		}
	}
	placeBlock(lane, k, node) {
		const first = lane.position[lane.first[k]];
		node.style.left = `${first * this.cell}px`;
		node.style.width = `${lane.tokens[k] * this.cell}px`;
	}
	block(lane, k) {
		const seconds = lane.end_time[k] - lane.begin[k];
		const bar = h("div.bar");
		for (const phase of this.phases) bar.append(h("i", { class: phase, style: `flex-grow:${1e6 * lane[phase][k]}` }));
		const wait = lane.waits.indexOf(k);
		const label = h("span.cost", wait >= 0 ? h("b", `${RANKS[wait]} `) : "", ms(seconds));
		const said = lane.passSentence(k, this.kinds);
		const parts = this.phases.map((p) => `${p} ${ms(lane[p][k])}`).join(", ");
		const node = h("div", { class: wait >= 0 ? "block wait" : "block", title: `${said}: ${parts}` }, bar, label);
		hear(node, "click", () => this.seek(lane.end_time[k]));
		this.placeBlock(lane, k, node);
		return node;
	}
	draw(t) {
		this.t = t;
		const [from, to] = this.shown;
		for (const row of this.rows) {
			const { lane } = row;
			const done = lane.done(t), stands = lane.standing(t);
			const seen = new Set();
			for (let p = from; p < Math.min(to, this.columns); p++) {
				const token = lane.token(p, t);
				let cell = row.cells.get(p);
				if (token < 0) { if (cell) { cell.node.remove(); row.cells.delete(p); } continue; }
				if (!cell) {
					cell = { node: h("span.cell", { style: `left:${p * this.cell}px` }), token: -1 };
					row.cells.set(p, cell);
					row.track.append(cell.node);
				}
				if (cell.token !== token) {
					cell.token = token;
					const kind = this.kinds[lane.kind[token]], text = lane.texts[lane.text[token]];
					cell.node.className = `cell t ${kind.name}`;
					cell.node.dir = "auto";
					cell.node.title = `position ${p}: ${shownToken(text)} · ${kind.word}: ${kind.meaning} · ${lane.passSentence(lane.block[token], this.kinds)}`;
					cell.node.replaceChildren(kind.mark ? h("sup", kind.mark) : "", h("bdi", shownToken(text)));
				}
				seen.add(lane.block[token]);
			}
			for (const [k, node] of row.blocks) if (!seen.has(k)) { node.remove(); row.blocks.delete(k); }
			for (const k of seen) if (!row.blocks.has(k)) {
				const node = this.block(lane, k);
				row.blocks.set(k, node);
				row.track.prepend(node);
			}
			for (const [k, node] of row.blocks) node.classList.toggle("new", k === done - 1);
			const [phase, share] = lane.doing(t, this.phases);
			row.head.style.left = `${stands * this.cell}px`;
			row.head.className = `runner ${phase.replace(" ", "-")}`;
			row.head.firstChild.style.width = `${100 * Math.min(1, share)}%`;
			row.head.lastChild.textContent = phase === "finished" ? `⚑ ${ms(lane.finish)}` : phase;
			if (row.part) row.part.hidden = stands <= lane.parts;
			row.now.textContent = `${count(stands, "token")} · ${count(done, "cycle")}`;
		}
	}
	follow(t) { // keep the head of the leader in view, unless the reader scrolled away
		if (this.held) return;
		const head = Math.max(...this.lanes.map((lane) => lane.standing(t))) * this.cell;
		const who = this.node.querySelector(".who")?.offsetWidth ?? 0;
		const width = this.node.clientWidth - who;
		const left = Math.max(0, head - width * 0.7);
		if (Math.abs(left - this.node.scrollLeft) < 1) return;
		this.moving = true;
		this.node.scrollLeft = left;
		requestAnimationFrame(() => { this.moving = false; });
		this.window();
	}
}

// ---- the chart: tokens over time

class Chart {
	constructor(seek) {
		this.seek = seek;
		this.node = h("div.chart");
		const go = (event) => {
			const box = this.node.getBoundingClientRect();
			seek(((event.clientX - box.left - this.left) / this.inner) * this.last);
		};
		hear(this.node, "pointerdown", (event) => { this.node.setPointerCapture(event.pointerId); this.drag = true; go(event); });
		hear(this.node, "pointermove", (event) => { if (this.drag) go(event); });
		for (const end of ["pointerup", "pointercancel"]) hear(this.node, end, () => { this.drag = false; });
	}
	open(field, lanes, last) { Object.assign(this, { field, lanes, last }); this.size(); }
	size() {
		if (!this.lanes) return;
		const em = emOf(this.node);
		const width = Math.max(260, this.node.clientWidth || 900), height = Math.round(em * 15);
		const left = em * 2.6, right = em * 1.2, top = em * 0.8, strips = this.lanes.length * em * 0.5, low = height - em * 1.6 - strips;
		const most = Math.max(1, ...this.lanes.map((lane) => Math.max(0, ...lane.stands)));
		const x = (t) => left + ((width - left - right) * t) / this.last, y = (n) => low - ((low - top) * n) / most;
		Object.assign(this, { left, inner: width - left - right, x, y });
		const parts = [];
		for (const n of ticks(most, 4)) parts.push(s("path.ax", { d: `M${left} ${y(n)}H${width - right}` }), s("text", { x: left - 6, y: y(n) + em * 0.28, "text-anchor": "end" }, String(n)));
		for (const t of ticks(this.last * 1e3, Math.max(2, Math.round(width / 160)))) parts.push(s("text", { x: x(t / 1e3), y: height - 3, "text-anchor": "middle" }, t ? `${+t.toPrecision(6)} ms` : "0"));
		const clip = unique();
		this.passed = s("rect", { x: 0, y: 0, width: 0, height });
		parts.push(s("clipPath", { id: clip }, this.passed));
		this.lanes.forEach((lane, i) => {
			let d = `M${x(lane.prefill)} ${y(0)}`;
			for (let k = 0; k < lane.passes; k++) d += `H${x(lane.end_time[k])}V${y(lane.stands[k])}`;
			const dash = { "stroke-dasharray": DASHES[i % DASHES.length] };
			parts.push(s("path", { class: `line faint l${i % 6}`, d, ...dash }), s("path", { class: `line l${i % 6}`, d, "clip-path": `url(#${clip})`, ...dash }));
			// the prefill, below the axis: one bar per lane, so that none hides another
			const under = low + 3 + i * em * 0.5;
			parts.push(s("rect", { class: `prefill l${i % 6}`, x: x(0), y: under, width: Math.max(1, x(lane.prefill) - x(0)), height: em * 0.36 }, s("title", `${lane.name}: prefill, ${ms(lane.prefill)}`)));
			lane.waits.forEach((k, rank) => {
				const level = y(k ? lane.stands[k - 1] : 0);
				parts.push(s("path", { class: `wait l${i % 6}`, d: `M${x(lane.begin[k])} ${level}H${x(lane.end_time[k])}` }, s("title", `${lane.name}: longest wait ${rank + 1}, ${ms(lane.end_time[k] - lane.begin[k])}`)));
				parts.push(s("text", { class: `rank l${i % 6}`, x: (x(lane.begin[k]) + x(lane.end_time[k])) / 2, y: level - 6, "text-anchor": "middle" }, RANKS[rank]));
			});
			if (lane.end) parts.push(s("text", { class: `flag l${i % 6}`, x: x(lane.finish), y: y(lane.stands.at(-1) ?? 0) + em * 0.3, "text-anchor": "middle" }, lane.glyph));
		});
		parts.push(s("text", { x: left, y: low + strips + em * 0.1, class: "small", dx: 4 + (x(Math.max(...this.lanes.map((l) => l.prefill))) - left) }, "prefill"));
		this.cursor = s("path.cursor", { d: `M0 ${top}V${low + strips}` });
		this.dots = this.lanes.map((lane, i) => s("text", { class: `dot l${i % 6}`, "text-anchor": "middle" }, lane.glyph));
		parts.push(this.cursor, ...this.dots);
		this.em = em;
		this.node.replaceChildren(s("svg", { width, height, role: "img", "aria-label": `Tokens over time for ${this.lanes.map((l) => l.name).join(", ")}; flat stretches are waits` }, ...parts));
		this.draw(this.t ?? 0);
	}
	draw(t) {
		this.t = t;
		this.passed.setAttribute("width", this.x(t));
		this.cursor.setAttribute("transform", `translate(${this.x(t)} 0)`);
		this.lanes.forEach((lane, i) => {
			const at = Math.min(t, lane.finish);
			this.dots[i].setAttribute("x", this.x(at));
			this.dots[i].setAttribute("y", this.y(lane.standing(t)) + this.em * 0.3);
			this.dots[i].setAttribute("visibility", lane.finished(t) ? "hidden" : "visible");
		});
	}
}

function ticks(most, wanted) {
	const raw = most / wanted, unit = 10 ** Math.floor(Math.log10(raw));
	const step = [1, 2, 5, 10].map((m) => m * unit).find((v) => v >= raw) ?? unit;
	const found = [];
	for (let v = 0; v <= most * 1.0001; v += step) found.push(v);
	return found;
}

// ---- the board: who finished when, and why

function board(field, lanes, kinds, phases, seek) {
	const head = ["", "method", "speedup, decoding", "with prefill", "finish", "text is", "tokens", "cycles", "tokens per cycle"];
	const body = lanes.map((lane) => {
		const ratio = (x) => (field.comparable && lane.index === field.baseline ? "1 (base)" : x === null ? "–" : times(x));
		const place = h("td.place");
		const row = h("tr",
			place,
			h("th", { scope: "row" }, h("b", { class: `l${lane.index % 6}` }, lane.glyph), " ", h("bdi", lane.name), lane.drafter ? h("small", ` ← ${lane.drafter}`) : ""),
			h("td.n", ratio(lane.speedup)),
			h("td.n", ratio(lane.speedup_with_prefill)),
			h("td.n", lane.end ? ms(lane.finish) : `cut off at ${ms(lane.finish)}`),
			h("td", exactness(lane.exactness), lane.parts >= 0 ? h("small", ` ≠ from token ${lane.parts}`) : ""),
			h("td.n", String(lane.output), lane.output < (lane.stands.at(-1) ?? 0) ? h("small", ` (${lane.stands.at(-1)} cells)`) : ""),
			h("td.n", String(lane.passes)),
			h("td.n", lane.passes ? (lane.output / lane.passes).toFixed(2) : "–"),
		);
		return { lane, row, place };
	});
	const waits = lanes.map((lane) => h("li",
		h("b", { class: `l${lane.index % 6}` }, `${lane.glyph} `), h("bdi", lane.name), ": ",
		...lane.waits.flatMap((k, i) => [i ? "; " : "", waitButton(lane, k, i, kinds, phases, seek)]),
	));
	const node = h("div.board",
		h("div.scroll", { tabindex: "0", role: "region", "aria-label": "results" },
			h("table", h("caption", field.comparable ? `Speedups are tokens per second over ${lanes[field.baseline].name}'s.` : "No speedup: the clocks are not comparable."),
				h("thead", h("tr", ...head.map((word) => h("th", { scope: "col" }, word)))), h("tbody", ...body.map((entry) => entry.row)))),
		h("details", { open: "" }, h("summary", "Longest waits"), h("ul.waits", ...waits)),
	);
	return {
		node,
		draw(t) {
			ranking(lanes, t).forEach((lane, place) => { body[lane.index].place.textContent = lane.finished(t) ? `${place + 1}. ⚑` : `${place + 1}.`; });
		},
	};
}

// Describes a wait: its length, its purpose, and which phase took most of it.
function waitButton(lane, k, i, kinds, phases, seek) {
	const seconds = lane.end_time[k] - lane.begin[k];
	const phase = phases.reduce((a, b) => (lane[b][k] > lane[a][k] ? b : a));
	const share = seconds ? Math.round((100 * lane[phase][k]) / seconds) : 0;
	const at = k ? lane.stands[k - 1] : 0;
	const told = lane.sent[k] ? `, ${lane.accepted[k]} of ${lane.sent[k]} drafted accepted` : "";
	const button = h("button.link", { type: "button" }, `${RANKS[i]} ${ms(seconds)} at token ${at}`);
	hear(button, "click", () => seek(lane.end_time[k]));
	return h("span", button, ` (cycle ${lane.cycle[k]}: ${count(lane.tokens[k], "token")}${told}; ${phase} ${share} %)`);
}

// ---- the complete view

function render({ model, el }) {
	const { header, arrays } = unpack(model.get("data"));
	const { kinds, phases } = header;
	const root = h("div.sv.race", { tabindex: "-1", role: "group", "aria-label": "race of methods" });
	let field, lanes, events, last, t = 0, playing = false, pace = PACES[1], frame = 0, before = 0, clockwork = 0, spoken = "", uttered = 0;

	const models = h("span.soft");
	const chooser = h("select", { "aria-label": "prompt" }, ...header.fields.map((f, i) => h("option", { value: i }, `prompt ${f.number}`)));
	const promptText = h("pre", { dir: "auto" });
	const notes = h("div.notes");
	const leader = h("p.leader");
	const live = h("p.unseen", { "aria-live": "polite" });
	const clock = h("output.clock", { "aria-live": "off" });
	const slowed = h("span.soft.slowed");
	const play = press(icon("play"), "play (space)", () => toggle());
	const scrubber = h("input", { type: "range", min: "0", max: "1000", step: "1", "aria-label": "time" });
	hear(scrubber, "input", () => seek((last * scrubber.value) / 1000));
	const paces = h("select", { "aria-label": "how long the race takes on screen" }, ...PACES.map((p) => h("option", { value: p }, `${p} s`)));
	hear(paces, "change", () => { pace = +paces.value; tellPace(); share(model, { pace }); });
	const controls = h("div.controls",
		press("⇤", "start (Home)", () => seek(0)), press("←", "previous cycle (←)", () => step(-1)), play,
		press("→", "next cycle (→)", () => step(1)), press("⇥", "finish (End)", () => seek(last)),
		scrubber, clock, h("label", "played in ", paces), slowed,
		press("⤢", "projector (P)", () => projector()), press("?", "keys (?)", () => help.toggle()));
	const strip = new Strip(kinds, phases, (x) => seek(x));
	const chart = new Chart((x) => seek(x));
	let table = { node: h("div"), draw() {} };
	const help = overlay(root, "Keys of the race", header.keys);
	const legend = h("div.legend", ...phases.map((p) => h("span", h("i", { class: p }), p)), h("span", "a box is one cycle and all the tokens that it produced; ①②③ mark a lane's longest waits"));
	root.append(h("div.head", h("strong", "Race"), models, header.fields.length > 1 ? chooser : ""),
		h("details.prompt", h("summary", "Prompt"), promptText),
		notes, leader, controls, strip.node, legend, chart.node, table.node, live);
	el.append(root);

	function open(n) {
		field = header.fields[n];
		lanes = field.lanes.map((told, i) => new Lane(i, told, arrays, `${n}.${i}.`));
		last = Math.max(...lanes.map((lane) => lane.finish), 1e-9);
		events = [...new Set([0, ...lanes.flatMap((lane) => [lane.prefill, ...lane.end_time])])].sort((a, b) => a - b);
		last = Math.max(last, events[events.length - 1]);
		promptText.textContent = field.prompt || "not in the traces";
		notes.replaceChildren(...field.notes.map((note, i) => h("p", { class: i || field.comparable ? "note" : "note warn", role: "note" }, note)));
		models.textContent = header.model;
		const fresh = board(field, lanes, kinds, phases, seek);
		table.node.replaceWith(fresh.node);
		table = fresh;
		strip.open(field, lanes);
		chart.open(field, lanes, last);
		tellPace();
		show(0, true);
	}
	function choose() {
		chooser.value = Math.max(0, Math.min(header.fields.length - 1, model.get("prompt")));
		open(+chooser.value);
	}
	function tellPace() {
		const by = Math.max(pace / last, last / pace), much = `${by < 10 ? by.toFixed(1) : Math.round(by)}×`;
		slowed.textContent = by < 1.05 ? "in real time" : pace > last ? `slowed ${much}` : `sped up ${much}`;
	}
	function show(time, say) {
		t = time >= last * (1 - 1e-6) ? last : Math.max(0, time); // times arrive rounded: snap to the end
		clock.textContent = ms(t);
		scrubber.value = Math.round((1000 * t) / last);
		scrubber.setAttribute("aria-valuetext", ms(t));
		strip.follow(t);
		strip.draw(t);
		chart.draw(t);
		table.draw(t);
		const line = leaderSentence(field, lanes, t);
		if (leader.textContent !== line) leader.textContent = line;
		// Playback announces only changes of the lead, at most once a second; a step describes its pass.
		const who = line.split(" with ")[0], now = performance.now();
		const speaks = say || (playing && who !== spoken && now - uttered >= 1000);
		if (speaks) {
			live.textContent = `${ms(t)}: ${say ? happened() : ""}${line}`;
			uttered = now;
		}
		if (speaks || !playing) spoken = who;
	}
	function happened() {
		const said = [];
		for (const lane of lanes) {
			const k = upTo(lane.end_time, t) - 1;
			if (k >= 0 && lane.end_time[k] === t) said.push(`${lane.name}: ${lane.passSentence(k, kinds)}. `);
			if (lane.prefill === t) said.push(`${lane.name} has read the prompt. `);
		}
		return said.join("");
	}
	function seek(time) { stop(); strip.held = false; show(time, true); tell(); }
	function step(way) {
		const i = way > 0 ? events.findIndex((x) => x > t) : events.findLastIndex((x) => x < t);
		seek(i < 0 ? (way > 0 ? last : 0) : events[i]);
	}
	function tell() { share(model, { time: t, playing }); }
	function stop() {
		if (!playing) return;
		playing = false;
		cancelAnimationFrame(frame);
		playSign(play, false);
	}
	function toggle() {
		if (playing) { stop(); tell(); return; }
		if (t >= last) show(0, false);
		playing = true;
		strip.held = false;
		playSign(play, true);
		before = 0;
		clockwork = t;
		tell();
		frame = requestAnimationFrame(run);
	}
	function run(now) {
		const passed = before ? (now - before) / 1000 : 0;
		before = now;
		let to = t + (passed * last) / pace;
		if (still()) { // reduced motion: jump from pass to pass at the same pace
			clockwork += (passed * last) / pace;
			const i = upTo(events, clockwork) - 1;
			to = Math.max(t, events[Math.max(0, i)]);
			if (clockwork >= last) to = last;
		} else clockwork = to;
		if (to !== t) show(to, false);
		if (t >= last) { stop(); show(last, true); tell(); return; }
		frame = requestAnimationFrame(run);
	}
	function leadChange() {
		const first = (x) => { const [a, b] = ranking(lanes, x); return a.standing(x) > b.standing(x) || a.finished(x) ? a.index : -1; };
		const now = first(t);
		return events.find((x) => x > t && first(x) >= 0 && first(x) !== now) ?? last;
	}
	function nextWait() {
		const ends = lanes.flatMap((lane) => lane.waits.map((k) => lane.end_time[k])).sort((a, b) => a - b);
		return ends.find((x) => x > t) ?? ends[0] ?? 0;
	}
	function projector() { share(model, { projector: !model.get("projector") }); }
	function enlarge() {
		const on = !!model.get("projector");
		if (root.classList.contains("projector") === on) return;
		root.classList.toggle("projector", on);
		resize();
	}
	function takePace() {
		pace = model.get("pace");
		if (![...paces.options].some((each) => +each.value === pace)) paces.prepend(h("option", { value: pace }, `${pace} s`));
		paces.value = pace;
	}
	function resize() { strip.size(); strip.window(); strip.follow(t); strip.draw(t); chart.size(); }
	keys(root, help, ({ shiftKey }) => ({
		ArrowRight: () => (shiftKey ? seek(t + last / 100) : step(1)), ArrowLeft: () => (shiftKey ? seek(t - last / 100) : step(-1)),
		Home: () => seek(0), End: () => seek(last), " ": toggle,
		l: () => seek(leadChange()), w: () => seek(nextWait()), p: projector, "?": () => help.toggle(),
	}));
	hear(chooser, "change", () => { stop(); open(+chooser.value); model.set("prompt", +chooser.value); tell(); });
	const moved = () => Math.abs(model.get("time") - t) > 1e-9;
	const turn = () => { if (model.get("prompt") !== +chooser.value) { stop(); choose(); } };
	const deaf = listen(root, model, [
		// in any order
		["change:time", () => { turn(); if (moved()) { stop(); show(model.get("time"), true); queueMicrotask(tell); } }],
		["change:playing", () => { if (model.get("playing") === playing) return; if (!playing && moved()) show(model.get("time"), true); toggle(); }],
		["change:prompt", turn],
		["change:projector", enlarge],
		["change:pace", () => { takePace(); tellPace(); }],
	]);
	const size = () => el.clientWidth * 1e4 + emOf(root);
	let drawn = size();
	const observer = new ResizeObserver(() => { if (size() !== drawn) { drawn = size(); resize(); } });
	observer.observe(el);
	takePace();
	choose();
	enlarge();
	if (model.get("time")) show(model.get("time"), false);
	if (model.get("playing")) toggle();
	return () => {
		observer.disconnect();
		deaf();
		if (playing) toggle(); // last: a closed model cannot be told
	};
}

export default { render };
