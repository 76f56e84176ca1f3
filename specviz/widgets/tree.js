// The draft as a tree, with its signals below. Comes between shared.js and player.js in the player's module.
//
// The text continues along the top line: the accepted path and the target's own token. The other drafted nodes
// hang below, level by level. A tree that is too large for boxes is drawn as spots, with words if there is
// room and around the node in focus, so that it always fits its lane.

const STATUS_MARKS = { accepted: "✓", rejected: "✕", unjudged: "·", unsent: "○", below_budget: "△", cut: "│", unreviewed: "?" };
const GHOSTS = ["unsent", "below_budget"]; // drafted but not sent to the target
const ghost = (cycle, i) => GHOSTS.includes(cycle.status[i]);
const MOST = 400; // maximum number of nodes drawn; further cut nodes are only counted
const SHADES = 5; // shades of probability for spots
// Drawing order, from bottom to top.
const LAYERS = ["below_budget", "unsent", "unjudged", "open", "rejected", "cut", "unreviewed", "accepted", "extra"];

const dot = (x, y, r) => `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
const polygon = (n, turn) => (x, y, r) => {
	const corner = (_, k) => {
		const angle = 2 * Math.PI * ((k + turn) / n - 0.25);
		return `${(x + 1.2 * r * Math.cos(angle)).toFixed(1)} ${(y + 1.2 * r * Math.sin(angle)).toFixed(1)}`;
	};
	return `M${Array.from({ length: n }, corner).join("L")}Z`;
};
const cross = (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}m${-2 * r} 0l${2 * r} ${-2 * r}`;
// A shape for each source; other sources get a pentagon.
const SHAPES = { store: dot, neighbour: polygon(4, 0.5), prompt: polygon(3, 0), ngram: polygon(4, 0), datastore: polygon(3, 0.5) };
const shape = (source) => SHAPES[source] ?? polygon(5, 0);

// Sets only changed attributes: most of a tree stays in place from step to step.
function set(node, attributes) {
	const had = node.had ??= {};
	for (const name in attributes) {
		if (had[name] === attributes[name]) continue;
		put(node, name, had[name] = attributes[name]);
	}
}
const WIDE = 1.75; // width of a wide character in letters
const lettersOf = (text) => { let all = 0; for (const c of text) all += c.codePointAt(0) > 0x2e80 ? WIDE : 1; return all; };
// Places text cut to this many letters. Returns its width in letters.
function label(node, text, x, y, letters) {
	let room = letters, shown = "";
	for (const c of text) {
		room -= c.codePointAt(0) > 0x2e80 ? WIDE : 1;
		if (room < 0) { shown = `${[...shown].slice(0, -1).join("")}…`; break; }
		shown += c;
	}
	set(node, { x, y });
	if (node.shown !== shown) node.textContent = node.shown = shown;
	return letters - Math.max(0, room);
}

// ---- layout of the nodes

// The stages in which a draft grows: its levels, then the nodes cut by the budget.
function growthOf(cycle) {
	const deepest = Math.max(0, ...cycle.depth);
	const stages = Array.from({ length: deepest }, (_, d) => ({ level: d + 1, of: deepest }));
	if (cycle.status.some((status) => GHOSTS.includes(status))) stages.push({ cut: true });
	return stages;
}

// Assigns a row to each node: a first child has its parent's row, later ones go below all nodes placed at their depth,
// so that no edges cross. `ahead` puts the accepted path first and keeps the top row after it for the target's token;
// otherwise the draft keeps its own order, which reveals no verdict. Cut nodes come last and take `half` a row: 1 for boxes.
function placed(cycle, ahead, straight, half) {
	const { n, depth, children } = cycle;
	const rank = (i) => (ahead && cycle.path.includes(i) ? 0 : GHOSTS.indexOf(cycle.status[i]) + 2 || 1);
	const ranks = cycle.status.map((_, i) => rank(i));
	const kids = children.map((below) => (below.length > 1 ? [...below].sort((i, j) => ranks[i] - ranks[j] || i - j) : below));
	const hidden = new Set();
	if (n > MOST) {
		let left = MOST - n + cycle.fared("unsent") + cycle.fared("below_budget");
		for (let i = 0; i < n; i++) if (ghost(cycle, i) && (left-- <= 0 || hidden.has(cycle.parent[i]))) hidden.add(i);
	}
	const branching = kids.some((below) => below.length > 1);
	const last = cycle.tip, level = (last >= 0 ? depth[last] : 0) + 1;
	const free = new Array(Math.max(0, ...depth, branching && cycle.extra >= 0 ? level : 0) + 1).fill(0), row = new Array(n).fill(0);
	if (ahead && branching && cycle.extra >= 0) free[level] = 1;
	const weight = (i) => (ghost(cycle, i) ? half : 1);
	const place = (i, from) => {
		if (hidden.has(i)) return;
		let at = from;
		for (let j = i; j !== undefined; j = straight && !(ahead && j === last) ? kids[j + 1][0] : undefined) at = Math.max(at, free[depth[j]]);
		row[i] = at;
		free[depth[i]] = at + weight(i);
		for (const j of kids[i + 1]) place(j, at);
	};
	for (const j of kids[0]) place(j, 0);
	const behind = ahead && branching ? 0 : kids[last + 1].length || !ahead ? Math.max(n ? 1 : 0, ...(branching ? [free[level] ?? 0] : [])) : 0; // undefined if no drafted node is that deep
	const extra = cycle.extra < 0 ? null : { parent: last, depth: level, row: behind };
	// room for the target's token is always reserved, so that nothing moves when the verdict is shown
	return { row, weight, hidden, extra, branching, columns: free.length + (branching ? 0 : 1), rows: Math.max(1, ...free, n ? behind + 1 : 1, n && !branching ? 2 : 1) };
}

// The columns of the levels (the root's is 0). A chain too wide for its lane continues on another line, so that
// each box is as wide as its word needs; in a narrow lane a tree's columns are that wide, and the tree is scrolled.
function columnsOf(levels, chain, needs, { em, gap, least, rooted, room }) {
	let each = levels;
	if (chain) {
		each = Math.max(2, Math.min(levels, Math.floor(room / (gap + Math.max(4.6 * em, ...needs)))));
		each = Math.ceil(levels / Math.ceil(levels / each));
	}
	const even = Math.max(least, Math.min((chain ? 14 : 10.5) * em, (room - rooted) / (each - (rooted ? 1 : 0))));
	const wide = Array.from({ length: levels }, (_, d) => Math.max(d || !rooted ? even : Math.min(rooted, even), chain ? 0 : needs[d] + gap || 0));
	const left = wide.map((_, d) => wide.slice(d - (d % each), d).reduce((x, y) => x + y, 0.5 * em));
	const line = (d) => Math.floor(d / each);
	return { even, line, lines: line(levels - 1) + 1, x: (d) => Math.round(left[d]), box: (d) => wide[d] - gap, right: Math.max(...left.map((x, d) => x + wide[d] - gap)) };
}

// ---- the lane

class TreeLane {
	constructor(record, act) {
		Object.assign(this, { record, act, pool: [], hover: null, fit: true, room: 0, tallest: 0 });
		this.said = h("span.soft");
		this.growing = h("input", { type: "range", min: "0", step: "1", "aria-label": "growth of the draft" });
		hear(this.growing, "input", () => act.grow(+this.growing.value));
		this.grown = h("output", { "aria-live": "off" });
		this.zoom = button("full size", "full size or fitted to the lane (Z)", act.zoom, { "aria-pressed": "false" });
		this.tools = h("span.growth", h("label", h("span", "growth "), this.growing), this.grown, this.zoom);
		this.nodes = s("g"), this.over = s("g.over"), this.plot = s("g");
		// marks shared by all nodes of a fate form one path: fewer elements make a step fast
		this.layers = {}, this.groups = {};
		for (const name of ["edge", "spot", "cross", "bar", "origin", "disc"]) this.layers[name] = {}, this.groups[name] = s("g");
		this.signs = s("g"), this.heads = s("g.heads");
		for (const name of ["ring", "back", "leads", "tips"]) this[name] = s(name === "tips" ? "g" : "path", { class: name });
		const { edge, ...above } = this.groups;
		this.over.append(...Object.values(above), this.signs, this.ring, this.back, this.leads, this.tips);
		this.root = s("g.node.root", s("title"), s("rect", { rx: 6 }), s("text.word"));
		this.svg = s("svg", { role: "group", "aria-label": "the draft as a tree" }, this.heads, edge, this.root, this.nodes, this.over, this.plot);
		this.scroll = h("div.scroll", this.svg);
		this.legend = h("div.legend");
		this.node = lane("tree", "Draft", [this.said, this.tools], this.scroll, this.legend);
		const words = record.header.words.source ?? [];
		this.sources = words.some((word) => word !== "model") ? words : []; // a drafter that is a model needs no mark
		const at = (event) => {
			const group = event.target.closest?.("[data-i]");
			return group ? +group.dataset.i : event.clientX === undefined ? null : this.nearest(event);
		};
		hear(this.svg, "pointermove", (event) => { const i = at(event); if (i !== this.hover) { this.hover = i; act.look(i); } });
		hear(this.svg, "pointerleave", () => { this.hover = null; act.look(null); });
		hear(this.svg, "click", (event) => { if (at(event) !== null) act.click(at(event)); });
		hear(this.svg, "focusin", (event) => { if (at(event) !== null) act.focus(at(event)); });
	}
	belief(cycle, details, i) { return ["q", "confidence", "score"].map((name) => [name, (name === "score" ? details : cycle)?.value(name, i)]).find(([, x]) => known(x)) ?? ["belief"]; }
	source(cycle, i) { return this.record.header.words.source?.[cycle.value("source", i)]; }
	group(i) {
		while (this.pool.length <= i) {
			const box = s("rect.box", { rx: 6 }), word = s("text.word"), mark = s("text.mark");
			const g = s("g.node", { role: "button", tabindex: "-1", "data-i": this.pool.length }, box, word);
			this.pool.push({ g, box, word, mark });
			this.nodes.append(g);
			this.signs.append(mark);
		}
		return this.pool[i];
	}
	// Draws one path per fate in a layer: {fate: path data}; accepted nodes on top.
	paint(name, found) {
		const layer = this.layers[name], order = (fate) => LAYERS.indexOf(fate.split(" ")[0]);
		for (const fate of Object.keys(found)) {
			if (layer[fate]) continue;
			layer[fate] = s("path", { class: `${name} ${fate}` });
			this.groups[name].replaceChildren(...Object.keys(layer).sort((a, b) => order(a) - order(b)).map((one) => layer[one]));
		}
		for (const [fate, path] of Object.entries(layer)) set(path, { d: found[fate] ?? "" });
	}
	// Whether a node exists at this stage of the draft's growth, and its state then.
	at(cycle, i, stage) {
		const status = cycle.status[i];
		if (!stage) return this.phase > 0 || ghost(cycle, i) ? status : "open";
		if (stage.level) return cycle.depth[i] <= stage.level ? "open" : null;
		return ghost(cycle, i) ? status : "open";
	}
	// Chooses how the tree is drawn (boxes with bars, small boxes, or spots) and the spacing.
	style(cycle, ahead, even, tall) {
		const { em } = this;
		const boxes = (pitch, box, dense) => ({ plan: even, spots: false, dense, pitch, first: pitch, tall: box });
		if (even.rows * 3.1 * em <= tall || (!this.room && even.rows <= 9)) return boxes(3.1 * em, 2.35 * em, false);
		if (even.rows * 1.85 * em <= tall || !this.fit) return boxes(1.85 * em, 1.55 * em, true);
		let plan = placed(cycle, ahead, true, 0.5);
		if (plan.rows > tall / (0.62 * em)) plan = placed(cycle, ahead, false, 0.3);
		const first = ahead && plan.branching ? 2 * em : 0;
		const pitch = Math.max(this.narrow ? 1.05 * em : 0, Math.min(1.5 * em, (tall - first) / (plan.rows - (first ? 1 : 0))));
		return { plan, spots: true, dense: true, pitch, first: first || pitch, tall: 1.55 * em };
	}
	draw(cycle, phase, guesses, stage, ahead) {
		Object.assign(this, { cycle, phase, guesses, stage });
		const found = { edge: {}, spot: {}, cross: {}, bar: {}, origin: {}, disc: {} };
		const add = (layer, fate, d) => { found[layer][fate] = (found[layer][fate] ?? "") + d; };
		const em = this.em, { record } = this, details = record.details(cycle);
		const lanes = this.lanes(cycle), top = 1.5 * em;
		const even = placed(cycle, ahead, true, 1), chain = cycle.n > 0 && !even.branching, room = this.width - 1.5 * em;
		const needs = chain || this.narrow ? this.needs(cycle, even) : [];
		const lines = chain ? columnsOf(even.columns, true, needs, { em, gap: 1.5 * em, least: 4.6 * em, rooted: 0, room }).lines : 1;
		// only the line of the target's token needs a second row; in predict mode none may reveal which line that is
		const boxRows = chain && ahead ? lines + (even.extra?.row ? 1 : 0) : lines * even.rows, boxesTall = boxRows * 3.1 * em + (lines - 1) * top;
		// the signals take the space left by a small tree, and yield to a large one
		const above = Math.min(5.7 * em, this.width / even.columns) < 0.43 * em * Math.max(...lanes.map(([[, title]]) => title.length)); // names above the signals, or next to them
		const gap = (above ? 1.6 : 0.8) * em, spare = this.room - top - Math.min(0.68 * this.room, boxesTall);
		this.lane = { gap, above, tall: Math.max(1.05 * em, Math.min((chain && !this.narrow ? 9 : 4) * em, spare / Math.max(1, lanes.length) - gap)) };
		const below = lanes.length * (this.lane.tall + this.lane.gap) + 0.4 * em;
		const style = this.style(cycle, ahead, even, Math.max(8 * em, this.room - top - below));
		const { plan, dense } = style, small = style.spots;
		Object.assign(this, { plan, small });
		const at = columnsOf(plan.columns, chain, needs, {
			em, room, gap: (dense ? 1.1 : 1.5) * em, least: (this.fit && small ? 3.2 : 4.6) * em, rooted: small ? 5.7 * em : 0, // the column of the root is narrow
		});
		// the lines of a chain spread out over the available height
		const loose = chain && !this.narrow ? Math.max(1, Math.min(2.6, (this.room - below) / (boxesTall + top))) : 1;
		const tall = style.tall * Math.min(loose, 1.6), pitch = style.pitch * loose, first = style.first * loose;
		const { x, box } = at, rootBoxed = box(0), below0 = [0]; // offset of each line below the first
		const rows = (k) => (!chain || !ahead ? plan.rows : plan.extra?.row && k === at.line(plan.extra.depth) ? 2 : 1);
		for (let k = 1; k < at.lines; k++) below0.push(below0[k - 1] + rows(k - 1) * pitch + top);
		const under = (depth) => below0[at.line(depth)];
		const y = (row) => top + (row < 1 ? row * first : first + (row - 1) * pitch); // top edge of a row
		const middle = (row, weight) => y(row) + (small ? ((row < 1 ? first : pitch) * weight) / 2 : tall / 2);
		Object.assign(this, { columns: at, lowered: under, wide: at.even, under: y(1), lowest: y(plan.rows) });
		const height = y(rows(at.lines - 1)) + below0.at(-1) + 0.1 * em;
		const letter = (dense ? 0.52 : 0.58) * em, letters = (d) => Math.max(2, Math.floor((box(d) - 0.8 * em) / letter));
		const beside = (d) => Math.max(2, Math.floor((box(d) - 0.6 * em) / (0.47 * em))); // letters
		const radius = Math.min(0.42 * em, 0.4 * pitch), shape0 = this.sources.length ? null : dot;
		// words go next to the spots that were sent and have room for one above and below
		const there = cycle.token.map((_, i) => (plan.hidden.has(i) ? null : this.at(cycle, i, stage)));
		const boxed = (i) => !small || (ahead && plan.branching && cycle.path.includes(i));
		const centre = cycle.token.map((_, i) => middle(plan.row[i], plan.weight(i)) + under(cycle.depth[i]));
		const roomy = new Set();
		if (small) {
			const levels = [];
			for (let i = 0; i < cycle.n; i++) if (there[i] && !ghost(cycle, i)) (levels[cycle.depth[i]] ??= []).push(i);
			for (const level of levels) {
				level?.sort((i, j) => centre[i] - centre[j]);
				level?.forEach((i, k) => { if (Math.min(centre[i] - (centre[level[k - 1]] ?? -1e9), (centre[level[k + 1]] ?? 1e9) - centre[i]) > 0.86 * em) roomy.add(i); });
			}
		}
		this.spots = [];
		// the root is the last token before this cycle
		const [rootTitle, rootBox, rootWord] = this.root.children;
		const before = cycle.o0 > record.a.out_at[this.first] ? record.text(record.a.out_token[cycle.o0 - 1]) : null;
		rootTitle.textContent = before === null ? "the prompt comes before this" : `the last token before this cycle: ${quote(before)}`;
		const rootY = top + (small ? (first - Math.min(tall, first)) / 2 : 0), rootTall = small ? Math.min(tall, Math.max(first, 1.3 * em)) : tall;
		set(rootBox, { x: x(0), y: rootY, width: rootBoxed, height: rootTall });
		label(rootWord, before === null ? "prompt" : shownToken(before), x(0) + rootBoxed / 2, rootY + rootTall / 2, Math.max(2, Math.floor((rootBoxed - 0.5 * em) / (0.62 * em))));
		// where the edges of a node start
		const leaves = new Array(cycle.n).fill(0);
		const total = cycle.n + (plan.extra && phase > 0 ? 1 : 0);
		for (let i = 0; i < Math.max(total, this.used ?? 0); i++) {
			const part = this.group(i), extra = i === cycle.n;
			const kind = i >= total ? null : extra ? `extra ${cycle.kind.name}` : there[i];
			set(part.g, { display: kind ? "inline" : "none" });
			if (!kind) { label(part.mark, "", 0, 0, 9); continue; }
			const parent = extra ? plan.extra.parent : cycle.parent[i];
			const asBox = extra ? boxed(i) || !small || plan.extra.row < 1 : boxed(i);
			const depth = extra ? plan.extra.depth : cycle.depth[i], nx = x(depth), wide = box(depth);
			const cy = extra ? middle(plan.extra.row, 1) + under(depth) : centre[i];
			const px = parent < 0 ? x(0) + rootBoxed : leaves[parent], py = parent < 0 ? rootY + rootTall / 2 : centre[parent];
			const guess = guesses?.has(i) ? " guess" : "";
			const edgeEnd = asBox ? nx : nx + 0.1 * em, bend = (edgeEnd - px) / 2;
			if (at.line(depth) !== at.line(depth - 1)) add("edge", kind, `M${px} ${py.toFixed(1)}h${(0.5 * em).toFixed(1)}V${(top + under(depth) - 1.45 * em).toFixed(1)}H${(nx - 0.4 * em).toFixed(1)}V${cy.toFixed(1)}H${edgeEnd}`);
			else add("edge", kind, `M${px} ${py.toFixed(1)}C${px + bend} ${py.toFixed(1)} ${edgeEnd - bend} ${cy.toFixed(1)} ${edgeEnd} ${cy.toFixed(1)}`);
			const lost = phase === 2 && !extra && ["rejected", "unjudged"].includes(cycle.status[i]);
			const [means, belief] = extra ? [] : this.belief(cycle, details, i);
			const p = extra ? record.a.out_p?.[cycle.extra] : phase > 0 ? cycle.value("p", i) : NaN;
			const text = record.text(extra ? record.a.out_token[cycle.extra] : cycle.token[i]), word = text === "" ? "∅" : shownToken(text);
			const source = extra ? undefined : this.source(cycle, i), draw = shape0 ?? shape(source);
			const mark = extra ? cycle.kind.mark || "▸" : guess && phase === 0 ? "✓" : kind === "open" ? "" : STATUS_MARKS[kind];
			if (asBox) {
				const ny = cy - tall / 2;
				set(part.box, { x: nx, y: ny, width: wide, height: tall, "fill-opacity": extra ? 1 : known(belief) ? (0.08 + 0.52 * belief).toFixed(2) : 0 });
				label(part.word, word, nx + wide / 2, ny + tall * (dense ? 0.38 : 0.42), letters(depth));
				if (source && this.sources.length) add("origin", "own", draw(nx, cy, 0.3 * em)); // where its edge enters
				const bar = wide - 10, low = ny + tall - (dense ? 5 : 10);
				if (known(belief)) add("bar", "q", `M${nx + 5} ${low + 1}h${Math.max(1, bar * belief).toFixed(1)}`);
				if (known(p)) add("bar", "p", `M${nx + 5} ${low + (dense ? 3 : 5)}h${Math.max(1, bar * p).toFixed(1)}`);
				if (mark) add("disc", kind, dot(nx + wide, ny, 0.55 * em));
				label(part.mark, mark, nx + wide, ny, 9);
				set(part.mark, { class: `mark ${kind}` });
				leaves[i] = nx + wide;
			} else {
				const r = extra ? radius : radius * (GHOSTS.includes(kind) ? 0.62 : 1), cx = nx + 0.5 * em;
				const shade = known(belief) ? Math.min(SHADES - 1, Math.floor(belief * SHADES)) : 0;
				add("spot", `${kind} b${shade}${guess}`, draw(cx, cy, r));
				if (kind === "rejected") add("cross", kind, cross(cx, cy, Math.max(0.2 * em, 0.75 * r)));
				const tight = Math.max(0.5 * em, pitch * (extra ? 1 : plan.weight(i)));
				set(part.box, { x: nx - 0.15 * em, y: cy - tight / 2, width: wide + 0.3 * em, height: tight, "fill-opacity": 0 });
				const worded = roomy.has(i) || extra, across = worded ? label(part.word, word, cx + 0.6 * em, cy, beside(depth)) : label(part.word, "", 0, 0, 9);
				label(part.mark, "", 0, 0, 9);
				leaves[i] = worded ? Math.min(nx + wide + 0.4 * em, cx + (0.8 + 0.5 * across) * em) : cx + r;
				this.spots[i] = { cx, cy, r, word, worded };
			}
			const { shown } = part.word, cutOff = shown && shown !== word ? `${shown} ` : ""; // the label includes the visible text
			const fate = extra ? cycle.kind.word : kind === "open" ? "not judged yet" : record.header.short[cycle.status[i]];
			set(part.g, {
				class: `node ${kind}${asBox ? (dense ? " dense" : "") : " spotted"}${guess}${lost ? " dropped" : ""}`, "aria-pressed": guesses && !extra ? String(guesses.has(i)) : null,
				"aria-label": `${cutOff}${quote(text)}, ${extra ? fate : `level ${cycle.depth[i]}, ${source && source !== "model" ? `from the ${sourceWord(source)}, ` : ""}drafter ${means} ${prob(belief)}, ${fate}`}${known(p) ? `, target ${prob(p)}` : ""}`,
			});
		}
		this.used = total;
		for (const name in found) this.paint(name, found[name]);
		set(this.groups.bar, { "stroke-width": dense ? 2 : 3 });
		set(this.svg, { class: phase > 0 ? "judged" : "" });
		this.levels(cycle, there);
		const plotted = this.signals(height, lanes, there);
		const tallest = Math.ceil(height + plotted);
		set(this.svg, { width: Math.ceil(at.right + 0.9 * em), height: tallest });
		// keep the height, so that content below does not jump from cycle to cycle
		this.tallest = Math.max(this.tallest, this.fit ? tallest : 0);
		if (this.scroll.style.minHeight !== `${this.tallest}px`) this.scroll.style.minHeight = `${this.tallest}px`;
		const sent = cycle.sent !== cycle.n ? `, ${cycle.sent} sent` : "", more = plan.hidden.size ? ` · ${plan.hidden.size} of the cut nodes are not drawn` : "";
		this.said.textContent = cycle.prefill ? "the prompt is read; nothing is drafted"
			: cycle.n ? `${count(cycle.n, "token")}${sent}, depth ${Math.max(...cycle.depth)}${cycle.stop && cycle.stop !== "none" ? ` · drafting stopped: ${record.header.stops[cycle.stop] ?? cycle.stop}` : ""}${more}` : textOnly(record) ? "not recorded" : "nothing was drafted in this cycle";
		this.words(there);
		this.tell(cycle, stage);
	}
	// Above each level, its number and its node count.
	levels(cycle, there) {
		const { em, plan, lowered } = this, { x, box } = this.columns, sizes = [];
		for (let i = 0; i < cycle.n; i++) if (there[i]) sizes[cycle.depth[i]] = (sizes[cycle.depth[i]] ?? 0) + 1;
		const short = this.small || box(0) < 6 * em;
		for (let d = 0; d < Math.max(sizes.length, this.heads.children.length); d++) {
			const head = this.heads.children[d] ?? this.heads.appendChild(s("text"));
			const said = sizes.length < 2 || (d && !sizes[d]) ? "" : d ? `${short ? "" : "level "}${d}${plan.branching ? ` · ${sizes[d]}` : ""}` : short ? "level" : "";
			label(head, said, said ? x(d) + (this.small || !d ? 0.1 * em : box(d) / 2) : 0, 0.75 * em + (said ? lowered(d) : 0), 99);
			set(head, { "text-anchor": this.small || !d ? "start" : "middle" });
		}
	}
	// Updates the growth control's text.
	tell(cycle, stage) {
		const stages = growthOf(cycle);
		this.tools.hidden = stages.length < 2;
		const k = stage ? stages.findIndex((one) => one.level === stage.level && one.cut === stage.cut) : stages.length - 1;
		set(this.growing, { max: Math.max(0, stages.length - 1) });
		this.growing.value = k;
		const said = !stage ? "whole draft" : stage.level ? `level ${stage.level} of ${stage.of}` : "budget cut";
		if (this.grown.textContent !== said) this.grown.textContent = said;
		this.growing.setAttribute("aria-valuetext", said);
		this.zoom.hidden = !this.small && this.fit;
	}
	// The legend, limited to marks that occur in this cycle.
	words(there) {
		const { cycle, record, phase, small } = this;
		const fates = [...new Set(there)].filter((name) => name && name !== "open");
		const boxes = new Set(fates.filter((name) => !small || ["accepted", "cut", "unreviewed"].includes(name)));
		const sources = [...new Set(cycle.token.map((_, i) => this.source(cycle, i)))].filter((word) => word && this.sources.length);
		const details = record.details(cycle), believed = cycle.token.some((_, i) => known(this.belief(cycle, details, i)[1]));
		const key = [fates, sources, small, believed, cycle.n > 0, phase > 0, cycle.extra >= 0 ? cycle.kind.name : ""].join();
		if (key === this.key) return;
		this.key = key;
		const sign = (kind, draw, crossed) => s("svg", { viewBox: "-8 -8 16 16", class: "sign", "aria-hidden": "true" }, s("path", { class: kind, d: draw(0, 0, 5) }), crossed ? s("path.cross.rejected", { d: cross(0, 0, 4) }) : "");
		const marks = fates.map((name) => [boxes.has(name) ? h("b", { class: `m ${name}` }, STATUS_MARKS[name]) : sign(`spot ${name} b2`, dot, name === "rejected"), name === "unsent" && this.plan.branching ? "over the budget" : record.header.short[name], record.header.fates[name]]);
		if (phase > 0 && cycle.extra >= 0) marks.push([h("b", { class: `m extra ${cycle.kind.name}` }, cycle.kind.mark || "▸"), cycle.kind.word, cycle.kind.meaning]);
		const bars = cycle.n && (!small || boxes.size) ? [...(believed ? [h("span", h("i.bar-q"), `drafter's ${record.a.node_q ? "probability" : record.a.node_confidence ? "confidence" : "score"}`)] : []), ...(phase > 0 ? [h("span", h("i.bar-p"), "target's p")] : [])] : [];
		const from = sources.length ? [h("span.from", "from the ", ...sources.map((word) => h("span", sign("origin own", shape(word)), sourceWord(word))))] : [];
		this.legend.replaceChildren(...bars, ...marks.map(([mark, what, title]) => h("span", { title }, mark, ` ${what}`)), ...from);
	}
	// The drafter's signals that were recorded: [[signal, values], ...].
	lanes(cycle) {
		const details = this.record.details(cycle);
		return cycle.n ? this.record.header.signals.map((row) => [row, cycle.token.map((_, i) => cycle.value(row[0], i) ?? details?.value(row[0], i))]).filter(([, values]) => values.some(known)) : [];
	}
	// Draws the signals under the nodes' columns; those of a chain on several lines have their own columns.
	signals(top, rows, there) {
		const { cycle, em, columns: at, record, plan } = this, { tall, gap, above } = this.lane;
		const each = (this.width - 1.5 * em) / plan.columns, x = at.lines > 1 ? (d) => Math.round(0.5 * em + d * each) : at.x, box = at.lines > 1 ? () => 0.7 * each : at.box;
		const params = record.header.run.parameters ?? {};
		const across = [], seen = [];
		const order = cycle.token.map((_, i) => i).filter((i) => there[i]).sort((i, j) => plan.row[i] - plan.row[j]);
		for (const i of order) across[i] = seen[cycle.depth[i]] = (seen[cycle.depth[i]] ?? 0) + 1;
		let used = 0;
		rows.forEach(([[name, title, meaning, least = 0, greatest], values], r) => {
			const row = this.row(r), base = top + gap + r * (tall + gap) + tall;
			const most = greatest ?? (["confidence", "margin"].includes(name) ? 1 : Math.max(1, record.most?.[name] ?? 0, ...values.filter(known)));
			record.most = { ...record.most, [name]: most };
			const height = (value) => base - (tall * (value - least)) / (most - least), zero = +height(0).toFixed(1);
			const right = x(plan.columns - 1) + box(plan.columns - 1);
			set(row.g, { display: "inline" });
			row.title.textContent = meaning;
			row.base = base;
			label(row.name, title, x(0), base - (above ? tall + 0.85 * em : tall / 2), 99);
			set(row.top, { x: x(1) - 4, y: base - tall + 0.1 * em });
			row.top.textContent = most === 1 ? "1" : greatest === undefined ? most.toFixed(1) : +most.toPrecision(2);
			set(row.axis, { x1: x(1), x2: right, y1: zero, y2: zero });
			const limit = name === "confidence" ? params.fallback ?? params.stop : name === "score" ? params.threshold : undefined;
			set(row.limit, { display: known(limit) && limit > 0 ? "inline" : "none" });
			if (known(limit)) set(row.limit, { x1: x(1), x2: right, y1: base - tall * Math.min(1, limit / most), y2: base - tall * Math.min(1, limit / most) });
			row.limitTitle.textContent = `threshold ${limit}`;
			// one path for all nodes of a fate: a stem and a dot per node
			const paths = {}, radius = (this.small ? 0.14 : 0.26) * em;
			row.at = [];
			for (const i of order) {
				if (!known(values[i])) continue;
				const cx = +(x(cycle.depth[i]) + (box(cycle.depth[i]) * across[i]) / (seen[cycle.depth[i]] + 1)).toFixed(1), cy = +height(values[i]).toFixed(1);
				row.at[i] = [cx, cy, zero];
				paths[there[i]] = `${paths[there[i]] ?? ""}M${cx} ${zero}V${cy}${dot(cx, cy, radius)}`;
			}
			for (const fate of Object.keys(paths)) if (!row.fates[fate]) row.g.insertBefore(row.fates[fate] = s("path", { class: `stem ${fate}` }), row.lit);
			for (const [fate, path] of Object.entries(row.fates)) set(path, { d: paths[fate] ?? "" });
			set(row.g, { class: `signal${this.small ? " fine" : ""}` });
			used = gap + (r + 1) * (tall + gap);
		});
		for (let r = rows.length; r < (this.plotRows?.length ?? 0); r++) set(this.plotRows[r].g, { display: "none" });
		return used;
	}
	row(r) {
		this.plotRows = this.plotRows ?? [];
		if (!this.plotRows[r]) {
			const limitTitle = s("title");
			const g = s("g.signal", s("title"), s("text.name"), s("text.top"), s("line.axis"), s("line.limit", limitTitle));
			this.plot.append(g);
			const lit = s("path.stem.lit");
			g.append(lit);
			this.plotRows[r] = { g, title: g.children[0], name: g.children[1], top: g.children[2], axis: g.children[3], limit: g.children[4], limitTitle, lit, fates: {}, at: [], base: 0 };
		}
		return this.plotRows[r];
	}
	// The width that each level's longest word needs in a box, starting with the root.
	needs(cycle, plan) {
		const { record, em } = this, found = new Array(plan.columns).fill(0);
		const take = (depth, token) => { found[depth] = Math.max(found[depth], Math.min(0.8 * this.width, (0.58 * lettersOf(shownToken(record.text(token))) + 0.9) * em)); };
		cycle.token.forEach((token, i) => take(cycle.depth[i], token));
		if (plan.extra) take(plan.extra.depth, record.a.out_token[cycle.extra]);
		if (cycle.o0 > record.a.out_at[this.first]) take(0, record.a.out_token[cycle.o0 - 1]);
		else found[0] = 4.4 * em; // the word shown there in that case
		return found;
	}
	// `room`: the height available to the lane, in pixels; `narrow`: whether the page scrolls anyway.
	size(room, narrow) {
		this.narrow = narrow;
		this.em = emOf(this.node);
		this.width = this.scroll.clientWidth || 640;
		this.room = room;
		this.tallest = 0;
		this.scroll.style.maxHeight = `${Math.ceil(room) + 2}px`;
	}
	// Highlights the node in focus; `asked`: whether the reader points at it or has focused it.
	light(i, asked) {
		this.lit?.classList.remove("lit");
		if (this.lit) this.lit.had.class = null;
		this.lit = i === null ? null : this.pool[i]?.g ?? null;
		this.lit?.classList.add("lit");
		for (const row of this.plotRows ?? []) {
			const at = i === null ? null : row.at[i];
			set(row.lit, { d: at ? `M${at[0]} ${at[2]}V${at[1]}${dot(at[0], at[1], 0.32 * this.em)}` : "" });
		}
		this.around(i, asked);
	}
	// Among spots: labels for the node in focus, its ancestors, siblings and children.
	around(i, asked) {
		const { cycle, em } = this, levels = new Map();
		const spot = i === null ? undefined : this.spots?.[i];
		set(this.ring, { d: spot ? dot(spot.cx, spot.cy, Math.max(spot.r + 0.2 * em, 0.45 * em)) : "" });
		if (this.small && asked && i < cycle.n) {
			for (let j = cycle.parent[i]; j >= 0; j = cycle.parent[j]) if (this.spots[j]) levels.set(cycle.depth[j], [j]);
			levels.set(cycle.depth[i], cycle.children[cycle.parent[i] + 1].filter((j) => this.spots[j]));
			levels.set(cycle.depth[i] + 1, cycle.children[i + 1].filter((j) => this.spots[j]));
		}
		let used = 0, back = "", leads = "";
		const step = 1.02 * em, reach = Math.max(3, Math.floor((this.wide - 1.7 * em) / (0.5 * em)));
		for (const level of levels.values()) {
			if (!level.length || level.every((j) => this.spots[j].worded)) continue;
			// the nearest to the one in focus, one line apart
			const near = level.includes(i) && level.length > 12 ? [...level].sort((j, k) => Math.abs(this.spots[j].cy - spot.cy) - Math.abs(this.spots[k].cy - spot.cy)).slice(0, 12) : level.slice(0, 12);
			near.sort((j, k) => this.spots[j].cy - this.spots[k].cy);
			const x = this.spots[near[0]].cx + 1.1 * em, at = [];
			near.forEach((j, k) => at.push(Math.max(this.under + 0.7 * em, this.spots[j].cy, k ? at[k - 1] + step : 0)));
			for (let k = near.length - 1, most = this.lowest; k >= 0; k--, most -= step) at[k] = most = Math.min(at[k], most);
			near.forEach((j, k) => {
				const text = this.tips.children[used] ?? this.tips.appendChild(s("text"));
				used++;
				const across = (0.56 * label(text, this.spots[j].word, x, at[k], reach) + 0.6) * em;
				set(text, { class: j === i ? "lit" : "", display: "inline" });
				leads += `M${this.spots[j].cx + this.spots[j].r} ${this.spots[j].cy}L${x - 0.2 * em} ${at[k]}`;
				back += `M${x - 0.3 * em} ${at[k] - 0.55 * em}h${across}v${1.1 * em}h${-across}Z`;
			});
		}
		for (let k = used; k < this.tips.children.length; k++) set(this.tips.children[k], { display: "none" });
		set(this.back, { d: back });
		set(this.leads, { d: leads });
	}
	// The node whose stem is nearest to a position in the signals, or null.
	nearest(event) {
		const frame = this.svg.getBoundingClientRect(), px = event.clientX - frame.left, py = event.clientY - frame.top;
		const row = (this.plotRows ?? []).find((one) => one.had !== null && one.g.had?.display === "inline" && py <= one.base + 0.3 * this.em && py >= one.base - this.lane.tall - 0.4 * this.em);
		let best = null, far = 1.4 * this.em;
		row?.at.forEach((at, i) => { if (at && Math.abs(at[0] - px) < far) { far = Math.abs(at[0] - px); best = i; } });
		return best;
	}
	roving(i) {
		if (this.rover === i && i !== null) return;
		this.rover = i;
		this.pool.forEach((part, j) => set(part.g, { tabindex: j === i ? "0" : "-1" }));
	}
	// Nodes in reading order: level by level from the top, with the target's token at its place.
	get order() {
		const { cycle, plan } = this, shown = (i) => this.pool[i]?.g.had?.display === "inline";
		const key = (i) => (i === cycle.n ? [plan.extra.depth, plan.extra.row] : [cycle.depth[i], plan.row[i]]);
		const found = [...Array(cycle.n + 1).keys()].filter(shown);
		return found.sort((i, j) => key(i)[0] - key(j)[0] || key(i)[1] - key(j)[1] || i - j);
	}
}

const SOURCE_WORDS = { ngram: "n-gram pool", model: "drafter", previous: "output before", heads: "target's own heads", slots: "parallel drafter" };
const sourceWord = (source) => SOURCE_WORDS[source] ?? source;
