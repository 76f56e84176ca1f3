// Canvases in the player. Follows player.js for traces that fill masked cells, and replaces the parts that differ:
// the text is a canvas of cells, a node places its token in a cell, and a verdict covers both token and cell.

const BEHIND = "last pass"; // the source of the draft
SOURCE_WORDS.self = BEHIND;

const odds = (x) => (known(x) ? `log-odds ${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}` : "log-odds not recorded");
const share01 = (x) => 1 / (1 + Math.exp(-x)); // log-odds as a probability
const cellOf = (cycle, i) => (i < cycle.n ? cycle.value("position", i) : cycle.record.a.out_position[cycle.extra]);
const placing = (record, token, cell) => `${quote(record.text(token))} in cell ${cell}`;
const promptOf = (cycle) => cycle.record.header.prompts.find((p) => cycle.row < p.last);
// For each cell, the last output row before row `end` that fills it, or -1.
function standingAt(cycle, end) {
	const { a, header } = cycle.record, found = new Array(header.canvas.length).fill(-1);
	for (let o = a.out_at[promptOf(cycle).first]; o < end; o++) found[a.out_position[o]] = o;
	return found;
}
// The range of cells in the blocks that a cycle covers: [from, to).
function stretch(cycle) {
	const { a, header } = cycle.record, { block, length } = header.canvas;
	const cells = cycle.token.map((_, i) => cellOf(cycle, i)).concat([...a.out_position.subarray(cycle.o0, cycle.o1)]);
	if (!cells.length) return [0, Math.min(block, length)];
	return [Math.floor(Math.min(...cells) / block) * block, Math.min(length, (Math.floor(Math.max(...cells) / block) + 1) * block)];
}

// A pass's predictions for the masked cells of a canvas (-1: the state itself), the current block's cells first, the most
// confident in front: [{cell, odds, tops: [[token, p], ...]}, ...].
const { details: plainDetails } = Record.prototype;
Record.prototype.details = function details(cycle) {
	const found = plainDetails.call(this, cycle);
	if (!found) return null;
	const number = this.chunkOf(cycle.row), chunk = this.chunks.get(number), at = cycle.row - number * this.header.chunk;
	const k = chunk.top_k[at], { block, first } = this.header.canvas;
	const most = this.header.run.parameters?.sure ?? Infinity; // log-odds above which cells count as equally certain
	let flat = 0;
	for (let i = 0; i < at; i++) flat += chunk.top_k[i] * (chunk.pred_at[i + 1] - chunk.pred_at[i]);
	found.read = (node) => {
		const list = [];
		for (let j = chunk.pred_at[at]; j < chunk.pred_at[at + 1]; j++) {
			if (chunk.pred_node[j] !== node) continue;
			const tops = [], from = flat + (j - chunk.pred_at[at]) * k;
			for (let i = from; i < from + k; i++) tops.push([chunk.pred_top_token[i], chunk.pred_top_p[i]]);
			list.push({ cell: chunk.pred_position[j], odds: chunk.pred_odds[j], tops });
		}
		const of = (one) => Math.floor(one.cell / block);
		const late = (one) => first && one.cell % block > 0;
		const sure = (one) => Math.min(one.odds, most);
		return list.sort((x, y) => of(x) - of(y) || late(x) - late(y) || sure(y) - sure(x) || x.cell - y.cell);
	};
	return found;
};

// ---------------------------------------------------------------- sentences

origin = function origin(cycle, i, details) {
	return `Cell ${cellOf(cycle, i)}, from the ${BEHIND} (${odds(details?.value("score", i))}), level ${cycle.depth[i]}. `;
};

const plainWhy = why;
why = function why(cycle, i, details) {
	const { record } = cycle, status = cycle.status[i], cell = cellOf(cycle, i);
	const read = details?.read(cycle.parent[i]) ?? [], next = read[0];
	if (!next || !["accepted", "rejected"].includes(status)) return plainWhy(cycle, i, details);
	const inWork = read.filter((one) => Math.floor(one.cell / record.header.canvas.block) === Math.floor(next.cell / record.header.canvas.block)).length;
	const own = `${placing(record, next.tops[0][0], next.cell)} (${odds(next.odds)})`;
	if (status === "accepted") return `In its parent's canvas this is the most confident of ${count(inWork, "masked cell")}, with this token (${odds(next.odds)}): accepted.`;
	if (next.cell === cell) return `This cell is next in its parent's canvas, but with ${own}, not with this token (p = ${prob(cycle.value("p", i))}): rejected.`;
	const here = read.find((one) => one.cell === cell);
	const right = here && here.tops[0][0] === cycle.token[i];
	const said = here ? right ? ` This token would be right here (${odds(here.odds)}), but its turn has not come.` : ` Here it would now write ${quote(record.text(here.tops[0][0]))}.` : "";
	return `Another cell is next in its parent's canvas: ${own}. Rejected.${said}`;
};

whyExtra = function whyExtra(cycle) {
	const { record } = cycle, { a } = record, { name } = cycle.kind, o = cycle.extra;
	const token = `${placing(record, a.out_token[o], a.out_position[o])} (${odds(a.out_odds?.[o])})`;
	const others = cycle.o1 - cycle.o0 - cycle.accepted - 1;
	if (others > 0) return `The pass places ${others + 1} cells at once, all that pass its rule; the last of them is ${token}.`;
	return { bonus: "The whole path was accepted, and the pass over its last canvas places one more token", correction: "No draft matches what the last accepted canvas places next" }[name]?.concat(`: ${token}.`)
		?? `Nothing was drafted: the most confident masked cell of the current block gets its most likely token, ${token}.`;
};

const STOPS = { first: "no cell has been read yet", tail: "fewer cells are masked than a draft has", refresh: "the next refresh is due" };
narrate = function narrate(cycle, phase, whole, stage) {
	const { record } = cycle, { a, header } = record, { length, block, cache } = header.canvas, head = `Cycle ${cycle.number}`;
	if (stage) return `${head}, draft, ${grew(cycle, stage)}`;
	if (cycle.prefill) return `${head}: a canvas of ${length} masked cells follows the prompt, in blocks of ${block}; nothing is computed yet.`;
	const some = (list) => (list.length <= 6 ? `: ${list.join(", ")}` : "");
	const guesses = cycle.token.map((token, i) => placing(record, token, cellOf(cycle, i)));
	const stop = STOPS[cycle.stop] ? ` (${STOPS[cycle.stop]})` : "";
	const drafted = cycle.n ? `the ${BEHIND}’s guesses are ${count(cycle.n, "canvas").replace(/canvass$/, "canvases")} beside the state${some(guesses)}${cycle.stop === "refresh" ? stop : ""}` : `nothing is drafted${stop}`;
	const fresh = cache === "dual" && a.refreshed?.[cycle.row] > 0 ? "a refresh, " : "";
	const judged = cycle.n ? `${fresh}one pass over all of them: ${cycle.accepted} of ${cycle.n} accepted` : `${fresh}one pass over the state`;
	const placed = [];
	for (let o = cycle.o0; o < cycle.o1; o++) placed.push(placing(record, a.out_token[o], a.out_position[o]));
	const last = cycle.extra >= 0 && cycle.n ? `, the last one ${cycle.kind.came}` : "";
	const written = `${count(placed.length, "cell")} placed${some(placed)}${last}${cycle.end ? `; the text ends (${header.ends[cycle.end]})` : ""}`;
	if (textOnly(record)) return `${head}: ${written}; drafts and verdicts are not recorded.`;
	if (whole) return `${head}: ${drafted}; ${judged}; ${written}.`;
	return `${head}, ${PHASES[phase]}: ${[drafted, judged, written][phase]}.`;
};

// ---------------------------------------------------------------- the canvas so far

TextLane = class CanvasLane {
	constructor(record, go) {
		const { length, block } = record.header.canvas;
		this.record = record;
		this.cells = Array.from({ length }, (_, i) => h("span.cell", h("small", `${i}`), h("span")));
		this.blocks = [];
		for (let i = 0; i < length; i += block) this.blocks.push(h("span.block", ...this.cells.slice(i, i + block)));
		this.node = h("div.text.canvas", { dir: "auto", tabindex: "0", role: "region", "aria-label": "the canvas; click a cell to go to the cycle that placed it" }, ...this.blocks);
		this.born = new Int32Array(record.a.out_token.length);
		for (let row = 0; row + 1 < record.a.out_at.length; row++) this.born.fill(row, record.a.out_at[row], record.a.out_at[row + 1]);
		hear(this.node, "click", (event) => {
			const at = this.cells.indexOf(event.target.closest(".cell"));
			if (at >= 0 && this.stands[at] >= 0) go(this.born[this.stands[at]]);
		});
	}
	draw(cycle, phase) {
		const { record } = this, { a, header } = record, { block } = header.canvas;
		this.stands = standingAt(cycle, phase === 2 ? cycle.o1 : cycle.o0);
		const read = new Map((record.details(cycle)?.read(-1) ?? []).map((one) => [one.cell, one]));
		// if several nodes place the same cell, show the one that got furthest
		const drafted = new Map();
		for (let i = cycle.n - 1; i >= 0; i--) {
			const cell = cellOf(cycle, i), had = drafted.get(cell);
			if (had === undefined || !["accepted", "cut"].includes(cycle.status[had]) || phase === 0) drafted.set(cell, i);
		}
		this.cells.forEach((node, cell) => {
			const o = this.stands[cell], i = drafted.get(cell), one = read.get(cell);
			let kind = "mask", text = "", title = `cell ${cell}: masked`, mark = "";
			if (o >= 0) {
				const { name, word, mark: sign } = header.kinds[a.out_kind[o]];
				[kind, text, mark] = [`t ${name}${o >= cycle.o0 ? " new" : ""}`, record.text(a.out_token[o]), sign];
				title = `cell ${cell}: ${word}; cycle ${a.cycle[this.born[o]]}${a.out_p ? `, p = ${prob(a.out_p[o])}` : ""}`;
			} else if (i !== undefined && phase < 2) {
				const fate = phase > 0 ? cycle.status[i] : "open";
				[kind, text, mark] = [`guess ${fate}`, record.text(cycle.token[i]), phase > 0 ? STATUS_MARKS[fate] : ""];
				title = `cell ${cell}: drafted${phase > 0 ? `, ${header.short[fate]}` : ""}`;
			} else if (one) title += `; the pass over the state would write ${quote(record.text(one.tops[0]?.[0]))}, p = ${prob(share01(one.odds))}`;
			const word = shownToken(text.replace(/^ (?=.)/, "")), letters = node.lastChild;
			if (letters.shown !== mark + word) {
				letters.replaceChildren(mark ? h("sup", mark) : "", word);
				letters.shown = mark + word;
			}
			set(node, { class: `cell ${kind}`, title, style: kind === "mask" && one && phase > 0 ? `--p:${share01(one.odds).toFixed(2)}` : null });
		});
		const from = cycle.prefill ? 0 : a.block[cycle.row];
		this.blocks.forEach((node, k) => { set(node, { class: k === from ? "block work" : "block", title: `block ${k}: cells ${k * block} to ${k * block + node.children.length - 1}${k === from ? "; in work" : ""}` }); });
		this.work = this.blocks[Math.max(0, from)];
	}
	// Scrolls the current block into view.
	toEnd() { this.node.scrollTop = Math.max(0, this.work.offsetTop - this.node.clientHeight / 2); }
};

// ---------------------------------------------------------------- the tree: a node is a canvas

const PlainTree = TreeLane;
TreeLane = class CanvasTree extends PlainTree {
	constructor(record, act) {
		super(record, act);
		this.sources = []; // there is only one drafter
		this.layers.strip = {};
		this.badges = s("g.badges");
		this.over.append(this.groups.strip = s("g"), this.badges);
		this.svg.setAttribute("aria-label", "the draft as a tree of canvases");
	}
	// Leaves room for a strip below each box.
	style(cycle, ahead, even, tall) {
		const found = super.style(cycle, ahead, even, tall);
		if (found.spots) return found;
		if (found.dense) found.tall = 1.9 * this.em;
		found.first = found.pitch = found.tall + 1.2 * this.em;
		return found;
	}
	draw(cycle, phase, guesses, stage, ahead) {
		super.draw(cycle, phase, guesses, stage, ahead);
		const { record, em } = this, [from, to] = stretch(cycle), stands = standingAt(cycle, cycle.o0), found = {};
		const [title, box, word] = this.root.children, placed = stands.filter((o) => o >= 0).length;
		title.textContent = `the state: ${count(placed, "cell")} placed`;
		word.textContent = word.shown = "state";
		const strip = (at, drafted, own, fate) => {
			const wide = (at.width - 4) / (to - from), tall = 0.42 * em, y = at.y + at.height + 0.08 * em;
			for (let cell = from; cell < to; cell++) {
				const name = cell === own ? fate : drafted.has(cell) ? "drafted" : stands[cell] >= 0 ? "placed" : "masked";
				found[name] = `${found[name] ?? ""}M${(at.x + 2 + (cell - from) * wide).toFixed(1)} ${y.toFixed(1)}h${(wide - 1).toFixed(1)}v${tall.toFixed(1)}h${(1 - wide).toFixed(1)}Z`;
			}
		};
		if (!cycle.prefill) strip(box.had, new Set(), -1, "");
		let used = 0;
		for (let i = 0; i <= cycle.n; i++) {
			const { g, box: frame } = this.pool[i] ?? {};
			if (!g || g.had.display !== "inline" || (i === cycle.n && cycle.extra < 0)) continue;
			const cell = cellOf(cycle, i), above = new Set();
			for (let j = i < cycle.n ? cycle.parent[i] : cycle.tip; j >= 0; j = cycle.parent[j]) above.add(cellOf(cycle, j));
			const fate = i === cycle.n ? `extra ${cycle.kind.name}` : g.had.class.split(" ")[1];
			set(g, { "aria-label": `cell ${cell}: ${g.had["aria-label"].replace(/^cell \d+: /, "")}` });
			if (g.had.class.includes("spotted")) continue;
			strip(frame.had, above, cell, fate);
			const badge = this.badges.children[used] ?? this.badges.appendChild(s("g.badge-cell", s("rect", { rx: 4 }), s("text")));
			used++;
			const letters = label(badge.lastChild, `${cell}`, frame.had.x, frame.had.y, 9), wide = (0.5 * letters + 0.55) * em;
			set(badge, { display: "inline", class: `badge-cell ${fate}` });
			set(badge.firstChild, { x: frame.had.x - wide / 2, y: frame.had.y - 0.52 * em, width: wide, height: 1.04 * em });
		}
		for (let k = used; k < this.badges.children.length; k++) set(this.badges.children[k], { display: "none" });
		this.paint("strip", found);
		if (cycle.prefill) this.said.textContent = "an empty canvas; nothing is drafted";
		else if (cycle.n) this.said.textContent = `${cycle.n + 1} canvases with the state, depth ${Math.max(...cycle.depth)} · below each its cells ${from} to ${to - 1}, at its corner the one that it places${STOPS[cycle.stop] ? ` · ${STOPS[cycle.stop]}` : ""}`;
	}
};

// ---------------------------------------------------------------- why

const PlainWhy = WhyLane;
WhyLane = class CanvasWhy extends PlainWhy {
	constructor(record) {
		super(record);
		[this.left, this.right] = this.node.querySelectorAll("h4");
	}
	draw(cycle, i, phase, stage) {
		super.draw(cycle, i, phase, stage);
		if (cycle.prefill) this.sentence.textContent = "Nothing is computed before the first pass: every cell is masked and none has a draft.";
		if (this.node.classList.contains("empty")) return;
		const { record } = this, details = record.details(cycle), extra = i === cycle.n, cell = cellOf(cycle, i);
		const read = phase > 0 ? details?.read(extra ? cycle.tip : cycle.parent[i]) ?? [] : [];
		this.left.textContent = extra ? "the most confident cells of that canvas" : "the most confident cells of its parent's canvas";
		this.right.textContent = `the pass’s candidates in cell ${cell}`;
		const none = phase > 0 ? "its canvas is off the path: not recorded" : "shown with the verdict";
		const token = extra ? record.a.out_token[cycle.extra] : cycle.token[i];
		this.fill(this.drafter, read.slice(0, 5).map((one) => [one.tops[0][0], share01(one.odds)]), NaN, NaN, undefined, none);
		[...this.drafter.querySelectorAll(".top")].forEach((row, k) => {
			row.firstChild.textContent = `cell ${read[k].cell}`;
			row.classList.toggle("own", read[k].cell === cell);
		});
		const here = read.find((one) => one.cell === cell);
		this.fill(this.target, here?.tops ?? [], token, !extra && phase > 0 ? cycle.value("p", i) : undefined, cycle.value("rank", i), none);
	}
};

// ---------------------------------------------------------------- the computation of a pass

CacheLane = class WindowLane {
	constructor(record) {
		this.record = record;
		this.said = h("span.soft");
		this.old = h("div.old"), this.rows = h("div.old.new");
		this.node = lane("cache", "Positions", [this.said], h("div.strip", this.rows, this.old));
	}
	draw(cycle, phase) {
		const { a, header } = this.record, { cache, length } = header.canvas, fed = targetTokens(cycle);
		const each = a.context[promptOf(cycle).first] + length, all = each * (1 + cycle.n);
		const done = phase > 0 && !cycle.prefill && fed > 0;
		set(this.rows, { style: `flex:${done ? fed : 0} 1 0`, title: "positions computed in this pass" });
		set(this.old, { style: `flex:${done ? Math.max(0, all - fed) : 1} 1 0`, title: cache === "dual" ? "read from the cache, or from a canvas above" : "" });
		const how = cache !== "dual" ? "no cache: every position of every canvas" : a.refreshed[cycle.row] > 0 ? "a refresh: every position of the state, the windows of the drafts" : "only the windows; the rest from the cache";
		this.said.textContent = done ? `${grouped(fed)} computed of ${grouped(all)} in ${1 + cycle.n} canvas${cycle.n ? "es" : ""}: ${how}` : `${each} positions per canvas: the prompt and ${length} cells`;
	}
};
