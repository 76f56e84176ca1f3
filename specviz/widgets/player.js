// The player: one cursor (prompt, cycle, phase) and the lanes that follow it. Built on shared.js, save.js, tree.js,
// overview.js and find.js, which precede this file. Draws from the arrays of columns.py; existing elements are updated in place.

const PHASES = ["draft", "verify", "commit"];
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];
const WINDOW = 80; // tokens of the text that are added or removed at a time

// Quotes a token, isolated so that right-to-left text does not reorder the words around it.
const quote = (text) => `‘\u2068${text === "" ? "∅" : shownToken(text)}\u2069’`;
const ordinal = (n) => n + (n % 100 > 10 && n % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th");
const known = (x) => x !== undefined && !Number.isNaN(x);
const textOnly = (record) => record.header.run.record === null; // only the text was recorded

// Formats a probability; never rounded to 0 or 1 unless it is exactly that.
function prob(x) {
	if (!known(x)) return "not recorded";
	if (x === 0 || x === 1) return String(x);
	if (x < 1e-4) return x.toExponential(0);
	if (x < 0.01) return x.toFixed(4).replace(/0+$/, "");
	if (x > 0.995) return Math.min(x, 0.9999).toFixed(4);
	return x.toFixed(2);
}
// Formats two numbers with enough digits to tell them apart.
function apart(a, b) {
	const short = (x) => (x === Infinity ? "∞" : x > 1 ? x.toFixed(2) : prob(x));
	if (a === b || short(a) !== short(b)) return [short(a), short(b)];
	let digits = 3;
	while (digits < 12 && a.toPrecision(digits) === b.toPrecision(digits)) digits++;
	return [a.toPrecision(digits), b.toPrecision(digits)];
}

// ---- the record

// One cycle of the record, in the form that the lanes use.
class Cycle {
	constructor(record, row) {
		const { a, header } = record;
		this.record = record;
		this.row = row;
		this.number = a.cycle[row];
		this.n0 = a.node_at[row];
		this.n = a.node_at[row + 1] - this.n0;
		this.o0 = a.out_at[row];
		this.o1 = a.out_at[row + 1];
		this.context = a.context[row];
		this.prefill = this.number === 0 && this.n === 0 && this.o0 === this.o1;
		this.update = record.updateOf(row);
		this.stop = header.words.stop[a.stop[row]] ?? "";
		this.end = header.words.end[a.end[row]] ?? "";
		this.token = [], this.parent = [], this.depth = [], this.status = [];
		this.children = [[]]; // children of the root, then of each node
		for (let i = 0; i < this.n; i++) {
			const parent = a.node_parent[this.n0 + i];
			this.token.push(a.node_token[this.n0 + i]);
			this.parent.push(parent);
			this.depth.push(parent < 0 ? 1 : this.depth[parent] + 1);
			this.status.push(header.words.status[a.node_status[this.n0 + i]] ?? "unsent");
			this.children.push([]);
			this.children[parent + 1].push(i);
		}
		const survives = (i) => ["accepted", "unreviewed", "cut"].includes(this.status[i]);
		this.path = this.token.map((_, i) => i).filter(survives).sort((i, j) => this.depth[i] - this.depth[j]);
		const kinds = header.kinds;
		const last = this.o1 - 1;
		const drafted = last >= this.o0 && ["draft", "unreviewed"].includes(kinds[a.out_kind[last]].name);
		this.extra = last >= this.o0 && !drafted ? last : -1; // the token that the target added
		this.kind = this.extra < 0 ? null : kinds[a.out_kind[this.extra]];
		this.judged = this.token.map((_, i) => i).filter((i) => !["unsent", "below_budget", "unreviewed"].includes(this.status[i])); // by the target
		this.sent = this.judged.length;
		this.accepted = this.fared("accepted");
		// the node rejected where the text continued; other rejected siblings do not count
		this.tip = this.path.at(-1) ?? -1;
		this.rejected = this.children[this.tip + 1].find((i) => this.status[i] === "rejected") ?? -1;
	}
	fared(name) { return this.status.filter((status) => status === name).length; }
	value(name, i) { return this.record.a[`node_${name}`]?.[this.n0 + i]; }
	times() { return this.record.a.times.subarray(5 * this.row, 5 * this.row + 5); }
	get duration() { return this.record.duration(this.row); }
	// The statuses, origins and reasons that occurred in it, including why drafting or the text ended.
	get events() {
		const { a, header } = this.record;
		const found = new Set([...this.status, this.stop, this.end]);
		for (let o = this.o0; o < this.o1; o++) {
			const kind = header.kinds[a.out_kind[o]].name;
			found.add(kind === "rollback" ? "correction" : kind);
		}
		return found;
	}
}

class Record {
	constructor(data) {
		const { header, arrays } = unpack(data);
		this.header = header;
		this.a = arrays;
		this.pieces = new Map(Object.entries(header.pieces).map(([id, text]) => [+id, text]));
		this.chunks = new Map();
		this.cache = new Map();
		this.ends = new Set(header.run.eos ?? []);
		this.takenBack = arrays.out_gone.some((g) => g >= 0);
	}
	cycle(row) {
		let found = this.cache.get(row);
		if (!found) {
			if (this.cache.size > 512) this.cache.clear();
			this.cache.set(row, found = new Cycle(this, row));
		}
		return found;
	}
	// The update of a stream to which a row belongs.
	updateOf(row) {
		const all = this.header.prompts.find((p) => row < p.last)?.updates ?? [];
		let low = 0, high = all.length - 1;
		while (low < high) { const middle = (low + high + 1) >> 1; if (all[middle].first <= row) low = middle; else high = middle - 1; }
		return all[low];
	}
	duration(row) { let all = 0; for (let k = 5 * row; k < 5 * row + 5; k++) all += this.a.times[k]; return all; }
	text(token) { return this.ends.has(token) ? "■" : this.pieces.get(token) ?? `<${token}>`; }
	outText(row) { return this.header.words.text[this.a.out_text[row]]; }
	// Unpacks a chunk, stores it by its number, and returns the number.
	take(bytes) {
		if (!bytes || !bytes.byteLength) return -1;
		if (bytes === this.taken?.bytes) return this.taken.number; // already unpacked by an earlier step
		const { header, arrays } = unpack(bytes);
		for (const [id, text] of Object.entries(header.pieces)) this.pieces.set(+id, text);
		this.chunks.set(header.number, arrays);
		this.taken = { bytes, number: header.number };
		return header.number;
	}
	chunkOf(row) { return Math.floor(row / this.header.chunk); }
	// The chunk's details of a cycle; null until the chunk has arrived.
	details(cycle) {
		const chunk = this.chunks.get(this.chunkOf(cycle.row));
		if (!chunk) return null;
		const at = cycle.row - this.chunkOf(cycle.row) * this.header.chunk;
		const k = chunk.top_k[at], n0 = chunk.node_at[at], p0 = chunk.pred_at[at], p1 = chunk.pred_at[at + 1];
		// top_k may differ between cycles, so the offsets of the flat candidates are summed
		let node0 = 0, pred0 = 0;
		for (let i = 0; i < at; i++) {
			node0 += chunk.top_k[i] * (chunk.node_at[i + 1] - chunk.node_at[i]);
			pred0 += chunk.top_k[i] * (chunk.pred_at[i + 1] - chunk.pred_at[i]);
		}
		const list = (group, from) => {
			const tokens = chunk[`${group}_top_token`], p = chunk[`${group}_top_p`], found = [];
			if (!tokens || !p) return found;
			for (let i = from; i < from + k; i++) if (p[i] >= 0 && tokens[i] >= 0) found.push([tokens[i], p[i]]);
			return found;
		};
		return {
			value: (name, i) => chunk[`node_${name}`]?.[n0 + i],
			// The drafter's candidates when it chose node i.
			drafter: (i) => list("node", node0 + i * k),
			// The target's candidates after node i (-1: the root); null if it made no prediction there.
			target: (i) => {
				for (let j = p0; j < p1; j++) if (chunk.pred_node[j] === i) return list("pred", pred0 + (j - p0) * k);
				return null;
			},
		};
	}
}

// ---- sentences

// A node's origin, "From the store, score 0.21, level 3. "; empty with one drafter.
function origin(cycle, i, details) {
	const source = cycle.record.header.words.source?.[cycle.value("source", i)], score = details?.value("score", i);
	if ((!source || source === "model") && !known(score)) return "";
	return `From the ${sourceWord(source ?? "drafter")}${known(score) ? `, score ${prob(score)}` : ""}, level ${cycle.depth[i]}. `;
}

// Explains a node's fate, with its numbers.
function why(cycle, i, details) {
	const { header } = cycle.record, params = header.run.parameters ?? {};
	const drawn = (header.run.sampling?.temperature ?? 0) > 0;
	const q = cycle.value("q", i), p = cycle.value("p", i), rank = cycle.value("rank", i), u = details?.value("u", i);
	const best = details?.target(cycle.parent[i])?.[0];
	const own = best ? `${quote(cycle.record.text(best[0]))} (p = ${prob(best[1])})` : "another token";
	const pAt = `p = ${prob(p)}${header.at}`, place = rank >= 0 ? `its ${rank ? ordinal(rank + 1) : "first"} (${pAt})` : pAt;
	const rule = known(params.rollback);
	const status = cycle.status[i];
	if (status === "accepted" || status === "rejected") {
		const yes = status === "accepted";
		if (rule && known(p)) {
			const [d, limit] = apart(-Math.log(p), params.rollback ?? Infinity); // JSON has no infinity
			const verdict = `−ln p = ${d} ${yes ? "≤" : ">"} α_RB = ${limit}: ${yes ? "kept" : "rolled back, with everything after it"}`;
			return `${verdict}; the large model's own choice ${rank === 0 ? "is this token too" : `is ${own}`}.`;
		}
		if (known(params.beta) && known(p) && best && rank !== 0 && !drawn) {
			const [gap, limit] = apart(best[1] - p, params.beta < 1 ? params.beta / (1 - params.beta) : Infinity);
			return `max p − p = ${gap} ${yes ? "≤" : ">"} β/(1 − β) = ${limit}: ${yes ? "kept, because the bias favours the draft" : "rejected, with everything after it"}; the target's own choice is ${own}.`;
		}
		const gap = details?.value("gap", i), allowed = details?.value("threshold", i);
		if (known(gap) && known(allowed)) {
			const [a, b] = apart(gap, allowed);
			return `ln p lies ${a} ${gap <= allowed ? "≤" : ">"} τ = ${b} below that of the target's own choice, ${own}${rank >= params.top_beta ? `; rank ${rank + 1} > β` : ""}: ${status}.`;
		}
		if (drawn && known(u) && known(p) && known(q) && q > 0) {
			const [a, b] = apart(u, p / q);
			return `${cycle.children[cycle.parent[i] + 1][0] < i ? "Of what earlier siblings left:  " : ""}u = ${a} ${yes ? "<" : "≥"} p/q = ${prob(p)}/${prob(q)} = ${b}${header.at}: ${status}${p < q ? "" : " (as always where p ≥ q)"}.`;
		}
		if (yes && rank === 0) return `The target's own choice is this token too (${pAt}): accepted.`;
		if (yes) return `It passes the method's rule: for the target this token is ${place}: accepted.`;
		return `The target's own choice is ${own}; this token is ${place}: rejected.`;
	}
	if (status === "unjudged") {
		for (let j = cycle.parent[i]; j >= 0; j = cycle.parent[j])
			if (cycle.status[j] === "rejected") return `Not judged: it comes after ${quote(cycle.record.text(cycle.token[j]))}, the first rejection.`;
		const parent = cycle.parent[i];
		const sibling = cycle.children[parent + 1].find((j) => j !== i && cycle.path.includes(j));
		if (sibling !== undefined) return `Not judged: its sibling ${quote(cycle.record.text(cycle.token[sibling]))} was accepted first.`;
		return "Not judged: it is not on the accepted path.";
	}
	if (GHOSTS.includes(status)) {
		const limit = params.fallback ?? params.stop, confidence = cycle.value("confidence", i);
		const rated = known(p) ? ` The target gives this token p = ${prob(p)}${rank >= 0 ? `, its ${ordinal(rank + 1)}` : ""}.` : "";
		if (known(limit) && known(confidence) && confidence <= limit) {
			const [a, b] = apart(confidence, limit);
			return `Not sent: the drafter's confidence ${a} is ${confidence < limit ? "below" : "not above"} ${b}, so it stops and the target writes here.${rated}`;
		}
		if (header.run.method === "cm_asd") return `Not sent: ${cycle.stop === "eos" ? "after an end token" : `the window allows ${count(cycle.sent, "token")}`}.${rated}`;
		const score = details?.value("score", i);
		if (known(score)) {
			const least = Math.min(...cycle.status.map((s, j) => (GHOSTS.includes(s) ? Infinity : details.value("score", j) ?? Infinity)));
			const [a, b] = apart(score, least);
			if (score <= least && least < Infinity) return `Cut by the budget: the target reads ${count(cycle.sent, "token")}, and the lowest of their scores is ${b}; this one has ${a}.${rated}`;
		}
		return `Drafted, but not sent to the target.${rated}`;
	}
	if (status === "cut") return `The target agreed, but the text had ended before it (${header.ends[cycle.end] ?? "a limit"}).`;
	if (cycle.update) return "Carried over from the previous output; continuous decoding does not verify it.";
	return "Written without the target: the drafter ended the text, and this method does not verify that.";
}

// Explains the origin of the token that the target added.
function whyExtra(cycle) {
	const { record } = cycle, p = record.a.out_p?.[cycle.extra];
	const token = `${quote(record.text(record.a.out_token[cycle.extra]))} (p = ${prob(p)}${record.header.at})`;
	const refused = cycle.rejected >= 0 ? quote(record.text(cycle.token[cycle.rejected])) : "the rejected token";
	const capped = cycle.stop === "fallback" ? "The drafter was uncertain" : "The drafter had reached its maximum number of tokens";
	return cycle.kind.why.replace("{token}", () => token).replace("{refused}", () => refused).replace("{why}", capped);
}

// Describes a phase of a cycle, for the line under the controls and for a screen reader.
function narrate(cycle, phase, whole, stage) {
	const { record } = cycle;
	const { update } = cycle, head = update ? `Update ${update.update}, cycle ${cycle.number}` : `Cycle ${cycle.number}`;
	if (stage) return `${head}, draft, ${grew(cycle, stage)}`;
	const fed = textOnly(record) ? "an unrecorded number of tokens" : count(targetTokens(cycle), "token");
	if (cycle.prefill) return update ? `${head}: ${update.said}, the target reads ${fed}.` : `${head}, prefill: the target reads ${fed} of the prompt; nothing is written yet.`;
	const words = cycle.token.length <= 6 ? ` (${cycle.token.map((t) => quote(record.text(t))).join(" ")})` : "";
	const unsure = "; it stopped where it was uncertain", stop = { fallback: unsure, eos: "; it drafted the end of the text", unsure }[cycle.stop] ?? "";
	const lost = cycle.fared("below_budget") + cycle.fared("unsent");
	const branches = cycle.children.some((below) => below.length > 1);
	const cuts = branches && lost ? `; not sent: ${lost} over the budget` : "";
	const drafted = cycle.n ? `${update ? "the previous output is the draft:" : "the drafter proposes"} ${count(cycle.n, "token")}${words}${cuts}${stop}` : "nothing is drafted";
	const unread = cycle.status.includes("unreviewed");
	const judged = unread ? "the target is not asked" : cycle.sent ? `the target accepts ${cycle.accepted} of ${cycle.sent}${cycle.rejected >= 0 ? ` and rejects ${quote(record.text(cycle.token[cycle.rejected]))}` : ""}` : "the target has nothing to judge";
	const grown = cycle.o1 - cycle.o0;
	const extra = cycle.extra >= 0 ? `, ${grown > 1 ? "the last one " : ""}${cycle.kind.came}: ${quote(record.text(record.a.out_token[cycle.extra]))}` : "";
	const ended = cycle.end ? `; the text ends (${record.header.ends[cycle.end]})` : "";
	const masked = cycle.end && update?.shown !== null && update ? `; the display shows ${update.shown}` : "";
	const written = `${count(grown, "token")} written${extra}${ended}${masked}`;
	if (textOnly(record)) return `${head}: ${written}; drafts and verdicts are not recorded.`;
	if (whole) return `${head}: ${drafted}; ${judged}; ${written}.`;
	return `${head}, ${PHASES[phase]}: ${[drafted, judged, written][phase]}.`;
}

// Describes one step of the draft's growth.
function grew(cycle, stage) {
	const { record } = cycle, here = cycle.token.map((_, i) => i).filter((i) => (stage.level ? cycle.depth[i] === stage.level : GHOSTS.includes(cycle.status[i])));
	const sources = new Map();
	if (stage.cut) return `budget cut: the target reads ${cycle.sent} of ${cycle.sent + here.length} tokens; ${here.length} ${here.length === 1 ? "is" : "are"} not sent.`;
	for (const i of here) {
		const word = record.header.words.source?.[cycle.value("source", i)] ?? "model";
		sources.set(word, (sources.get(word) ?? 0) + 1);
	}
	const from = [...sources].some(([word]) => word !== "model") ? `: ${[...sources].map(([word, n]) => `${n} from the ${sourceWord(word)}`).join(", ")}` : "";
	const words = here.length <= 6 ? ` (${here.map((i) => quote(record.text(cycle.token[i]))).join(" ")})` : "";
	return `level ${stage.level} of ${stage.of}: ${count(here.length, "token")}${words}${from}.`;
}

// Number of tokens that the target read in a cycle.
function targetTokens(cycle) {
	const { a, header } = cycle.record;
	let total = 0;
	for (let i = a.pass_at[cycle.row]; i < a.pass_at[cycle.row + 1]; i++)
		if (header.words.pass_model?.[a.pass_model?.[i]] === "target") total += a.pass_tokens[i];
	return total;
}

// ---- the text so far

class TextLane {
	constructor(record, go) {
		this.record = record;
		this.rows = [];
		this.earlier = h("button.earlier", { type: "button", hidden: "" });
		this.body = h("span");
		this.caret = h("span.caret", { "aria-hidden": "true" });
		this.node = h("div.text", { dir: "auto", tabindex: "0", role: "region", "aria-label": "the text so far; click a token to go to its cycle" }, this.earlier, this.body, this.caret);
		hear(this.earlier, "click", () => { this.all = true; this.draw(this.cycle, this.phase, this.first); this.node.focus(STAY); });
		hear(this.body, "click", (event) => {
			const index = [...this.body.children].indexOf(event.target.closest(".t"));
			if (index >= 0) go(this.born[this.rows[index]]);
		});
		this.born = new Int32Array(record.a.out_token.length);
		for (let row = 0; row + 1 < record.a.out_at.length; row++) this.born.fill(row, record.a.out_at[row], record.a.out_at[row + 1]);
	}
	// Output rows that are in the text at the cursor.
	standing(cycle, phase, first) {
		const { a, takenBack } = this.record;
		const begin = a.out_at[first], end = phase === 2 ? cycle.o1 : cycle.o0, found = [];
		if (!takenBack) return { all: end - begin, from: (k) => Array.from({ length: end - begin - k }, (_, i) => begin + k + i) };
		for (let o = begin; o < end; o++) {
			const gone = a.out_gone[o];
			if (gone < 0 || gone > cycle.row || (gone === cycle.row && phase < 2)) found.push(o);
		}
		return { all: found.length, from: (k) => found.slice(k) };
	}
	draw(cycle, phase, first) {
		if (first !== this.first) this.all = false;
		Object.assign(this, { cycle, phase, first });
		const standing = this.standing(cycle, phase, first);
		const from = this.all ? 0 : Math.max(0, (Math.floor(standing.all / WINDOW) - 1) * WINDOW);
		const rows = standing.from(from);
		this.earlier.hidden = !from;
		if (from) this.earlier.textContent = `… ${count(from, "earlier token")}`;
		let same = 0;
		while (same < rows.length && same < this.rows.length && rows[same] === this.rows[same]) same++;
		for (let i = this.rows.length; i > same; i--) this.body.lastChild.remove();
		for (let i = same; i < rows.length; i++) this.body.append(this.token(rows[i]));
		this.rows = rows;
		for (const node of this.fresh ?? []) node.classList.remove("new");
		this.fresh = [];
		if (phase === 2) for (let i = rows.length - 1; i >= 0 && rows[i] >= cycle.o0; i--) this.fresh.push(this.body.children[i]);
		for (const node of this.fresh) node.classList.add("new");
		// show a character that is still incomplete
		this.open?.remove();
		const last = rows[rows.length - 1], by = this.record.a.out_by;
		if (last !== undefined && by[last] !== last) this.body.after(this.open = h("span.soft", { title: "a character that the next token completes" }, "◌"));
	}
	toEnd() { this.node.scrollTop = 1e9; }
	token(row) {
		const { a, header } = this.record, kind = header.kinds[a.out_kind[row]];
		const text = this.record.outText(row);
		const word = text.replace(/^ /, ""), space = word === text ? "" : " ";
		const node = h("span", { class: `t ${kind.name}${text === "" ? " part" : ""}`, title: `${kind.word}: ${kind.meaning}; cycle ${a.cycle[this.born[row]]}${a.out_p ? `, p = ${prob(a.out_p[row])}` : ""}` });
		node.append(space, kind.mark && text !== "" ? h("sup", kind.mark) : "", ...withSigns(word));
		return node;
	}
}

// ---- why, and the alternatives

class WhyLane {
	constructor(record) {
		this.record = record;
		this.word = h("span.word");
		this.fate = h("span.fate");
		this.sentence = h("p.why");
		this.drafter = h("div.tops"), this.target = h("div.tops");
		const { before } = record.header;
		this.node = lane("whys", "Why", [this.word, this.fate], this.sentence,
			h("div.both", h("div", h("h4", `the drafter's candidates${before}`), this.drafter), h("div", h("h4", `the target's candidates${before}`), this.target)));
	}
	draw(cycle, i, phase, stage) {
		this.stage = stage;
		const { record } = this, details = record.details(cycle);
		if (i === null || (i === cycle.n && (phase === 0 || cycle.extra < 0)) || i > cycle.n) {
			this.word.textContent = this.fate.textContent = "";
			this.sentence.textContent = cycle.prefill ? cycle.update ? "The prefix that the prompt shares with the previous one stays in the cache; everything after it, including the output, is computed again." : "The prompt is read once; its rows stay in the cache, and every cycle builds on them." : textOnly(record) ? "Not recorded." : "This cycle has nothing to guess.";
			this.drafter.replaceChildren();
			this.target.replaceChildren();
			this.node.classList.add("empty");
			return;
		}
		this.node.classList.remove("empty");
		const extra = i === cycle.n, token = extra ? record.a.out_token[cycle.extra] : cycle.token[i];
		const revealed = phase > 0;
		this.word.textContent = quote(record.text(token));
		this.fate.className = `fate ${extra ? `extra ${cycle.kind.name}` : revealed ? cycle.status[i] : "open"}`;
		this.fate.textContent = extra ? `${cycle.kind.mark || "▸"} ${cycle.kind.word}` : revealed ? `${STATUS_MARKS[cycle.status[i]]} ${record.header.short[cycle.status[i]]}` : "not judged yet";
		const [q, sure] = ["q", "confidence"].map((name) => cycle.value(name, i));
		const belief = known(q) ? `The drafter gives it q = ${prob(q)}; t` : known(sure) ? `The drafter gives it confidence ${prob(sure)}; t` : "T";
		const cut = !extra && ghost(cycle, i) && !this.stage; // known before the target's pass
		this.sentence.textContent = extra ? whyExtra(cycle) : revealed || cut ? origin(cycle, i, details) + why(cycle, i, details)
			: `${origin(cycle, i, details)}${belief}he target has not judged it yet.`;
		const waiting = details === null;
		// for the target's own token: the one that the drafter proposed there but did not send, or that was rejected
		const rival = extra ? cycle.children[cycle.tip + 1].find((j) => ["rejected", "unsent"].includes(cycle.status[j])) : i;
		this.fill(this.drafter, waiting ? null : rival === undefined ? [] : details.drafter(rival), token, extra ? undefined : cycle.value("q", i), undefined, extra ? "the drafter was not asked here" : record.header.run.draft ? "not recorded" : "no draft model");
		const judged = revealed ? waiting ? null : details.target(extra ? cycle.tip : cycle.parent[i]) ?? [] : [];
		this.fill(this.target, judged, token, revealed && !extra ? cycle.value("p", i) : undefined, revealed ? cycle.value("rank", i) : undefined, revealed ? "the target predicted nothing here" : "shown with the verdict");
	}
	fill(node, list, token, own, rank, none) {
		if (!list) { node.replaceChildren(h("p.soft", "on their way …")); return; }
		if (!list.length) { node.replaceChildren(h("p.soft", none)); return; }
		const rows = list.map(([id, p], k) => [k + 1, id, p]);
		if (!list.some(([id]) => id === token) && known(own)) rows.push([rank >= 0 ? rank + 1 : "", token, this.record.header.at ? NaN : own]);
		const there = [...node.querySelectorAll(".top")];
		rows.forEach(([place, id, p], k) => {
			let row = there[k];
			if (!row) {
				row = h("div.top", h("span.place"), h("bdi"), h("span.meter", h("i")), h("span.number"));
				node.append(row);
			}
			row.classList.toggle("own", id === token);
			row.classList.toggle("beyond", k >= list.length);
			const [a, b, c, d] = row.children;
			a.textContent = place;
			b.textContent = this.record.text(id) === "" ? "∅" : shownToken(this.record.text(id));
			c.firstChild.style.width = `${100 * Math.min(1, Math.max(0, p || 0))}%`;
			d.textContent = known(p) ? prob(p) : "";
		});
		for (const row of there.slice(rows.length)) row.remove();
		for (const note of node.querySelectorAll("p")) note.remove();
	}
}

// ---- where the time went; which cache rows stayed

class TimeLane {
	constructor(record) {
		this.record = record;
		this.said = h("span.soft");
		this.bars = record.header.words.phase.map((name) => h("i", { class: name }));
		this.passes = h("div.passes");
		this.legend = h("div.legend");
		this.node = lane("time", "Time", [this.said], h("div.bar", ...this.bars), this.passes, this.legend);
		this.parts = record.header.words.phase.map((name) => h("span", h("i", { class: name }), h("span")));
		this.legend.append(...this.parts);
	}
	// The time scale of a prompt: most cycles fit; longer ones are cut off and marked.
	scale(first, last) {
		const found = [];
		for (let row = first; row < last; row++) if (this.record.a.cycle[row] > 0) found.push(this.record.duration(row));
		found.sort((x, y) => x - y);
		this.most = (found[Math.floor(0.95 * (found.length - 1))] ?? 0) * 1.15;
	}
	draw(cycle, phase) {
		const times = cycle.times(), whole = cycle.duration, most = Math.max(this.most, 1e-9);
		this.node.hidden = !(whole > 0);
		if (!(whole > 0)) return;
		const fit = Math.min(1, most / whole); // a cycle longer than the scale is drawn only in part
		const lit = { 0: ["draft"], 1: ["forward", "verify"], 2: ["commit", "rest"] }[phase];
		this.record.header.words.phase.forEach((name, i) => {
			this.bars[i].style.width = `${(100 * times[i] * fit) / most}%`;
			this.bars[i].classList.toggle("dim", !this.whole && !lit.includes(name));
			const [key, text] = this.parts[i].children;
			this.parts[i].hidden = !(times[i] > 0);
			text.textContent = `${name} ${ms(times[i])}`;
			key.classList.toggle("dim", !this.whole && !lit.includes(name));
		});
		this.said.textContent = `${ms(whole)} in this cycle; ${fit < 1 ? `longer than the scale, which ends at ${ms(most)}: drawn shortened` : `full width ${ms(most)}`}`;
		const { a, header } = this.record, from = a.pass_at[cycle.row], to = a.pass_at[cycle.row + 1];
		while (this.passes.children.length < to - from) this.passes.append(h("i"));
		[...this.passes.children].forEach((bar, k) => {
			const i = from + k;
			bar.hidden = i >= to || !a.pass_start;
			if (bar.hidden) return;
			const model = header.words.pass_model[a.pass_model[i]];
			bar.className = model === "target" ? "forward" : "draft";
			bar.style.left = `${(100 * a.pass_start[i] * fit) / most}%`;
			bar.style.width = `${Math.max(0.2, (100 * a.pass_duration[i] * fit) / most)}%`;
			bar.title = `${model}: ${count(a.pass_tokens[i], "token")} in ${ms(a.pass_duration[i])}`;
		});
	}
}

class CacheLane {
	constructor(record) {
		this.record = record;
		this.said = h("span.soft");
		this.old = h("div.old", h("span"));
		this.rows = h("div.rows");
		this.node = lane("cache", "KV rows of the target", [this.said], h("div.strip", this.old, this.rows));
	}
	draw(cycle, phase) {
		const fed = targetTokens(cycle);
		// of the rows fed, those of unaccepted nodes are dropped
		const dropped = fed ? Math.min(fed, cycle.sent - cycle.accepted) : 0;
		// tokens carried over by continuous decoding were read with the prompt
		const carried = cycle.update && !fed ? cycle.fared("unreviewed") : 0;
		const stage = cycle.prefill ? 2 : phase;
		// null if it is unknown
		const before = !cycle.prefill ? Math.max(0, cycle.context - 1 + carried) : cycle.update ? cycle.update.reused : 0;
		const [old, sum] = before === null ? ["unknown", ""] : [grouped(before), ` = ${grouped(before + fed - dropped)}`];
		this.old.firstChild.textContent = cycle.prefill && before === 0 ? "empty" : old;
		this.old.title = `rows from before: ${old}`;
		const shown = Math.min(fed, 160);
		while (this.rows.children.length < shown) this.rows.append(h("i"));
		const out = new Set(); // rows in the order they were fed: tokens outside the draft, then the nodes
		const lead = fed - cycle.sent;
		cycle.judged.forEach((i, k) => { if (cycle.status[i] !== "accepted") out.add(lead + k); });
		[...this.rows.children].forEach((cell, k) => {
			const role = stage === 2 ? (out.has(k) ? "gone" : "kept") : stage ? "fed" : "";
			const fate = { gone: ": dropped", kept: ": kept" }[role] ?? "";
			set(cell, {
				hidden: k >= shown || role === "" ? "" : null, class: role,
				title: k < lead ? (cycle.prefill ? (cycle.update ? "a token of the prompt or of the output that is carried over" : "a token of the prompt") : "the last token before the draft") : `draft token ${quote(this.record.text(cycle.token[cycle.judged[k - lead]]))}${fate}`,
			});
		});
		this.rows.classList.toggle("many", shown > 40);
		const more = fed > shown ? ` (the first ${shown} are drawn)` : "";
		this.said.textContent = `${old} from before${stage ? ` + ${fed} forwarded` : ""}${stage > 1 ? ` − ${dropped} dropped${sum}` : ""}${stage ? more : ""}`;
	}
}

class CodeLane {
	constructor(record) {
		this.lines = record.header.loop;
		this.items = this.lines.map(([, line]) => h("li", { style: `--indent:${line.search(/\S|$/)}` }, h("code", line.trim().replace(/ {2,}/g, "  "))));
		const title = `The loop of ${record.header.run.pseudocode?.length ? record.header.run.method : "every method"}`;
		this.list = h("ol", { tabindex: "0", "aria-label": title }, ...this.items);
		this.node = lane("code", title, [], this.list);
	}
	get tall() { return this.list.offsetTop + this.list.scrollHeight; }
	size() {
		this.room = this.list.clientHeight;
		this.tops = this.list.scrollHeight > this.room ? this.items.map((item) => item.offsetTop - this.list.offsetTop) : null;
	}
	draw(cycle, phase, whole) {
		const now = { 0: ["draft"], 1: ["forward", "verify"], 2: ["commit"] }[phase];
		const phases = cycle.prefill ? [] : whole ? ["draft", "forward", "verify", "commit"] : now;
		const { events } = cycle;
		const unasked = cycle.record.header.words.pass_model?.length > 0 && !targetTokens(cycle); // BiLD may end without a target's pass
		const first = [];
		this.lines.forEach(([when], i) => {
			const [on, event] = when.split(":");
			const idle = (on === "draft" && !cycle.n && !event) || (on === "verify" && !event && !cycle.sent && cycle.n > 0)
				|| (unasked && (on === "forward" || on === "verify"));
			const lit = phases.includes(on) && (!event || events.has(event)) && !idle;
			this.items[i].classList.toggle("lit", lit);
			if (lit) first.push(i);
			put(this.items[i], "aria-current", lit ? "step" : null);
		});
		if (!this.tops || !first.length) return; // keep the highlighted lines in view
		const from = this.tops[first[0]], to = this.tops[first[first.length - 1]];
		const at = to + 24 < this.room ? 0 : from - 24;
		if (at !== this.scrolled) this.list.scrollTop = this.scrolled = at;
	}
}

// ---- the player

function render({ model, el }) {
	const data = model.get("data"), record = new Record(data);
	record.take(model.get("chunk"));
	const { header, a } = record, { run } = header;
	const root = h("div.sv.player", { tabindex: "-1", role: "group", "aria-label": "player of a decode" });
	let prompt = header.prompts[0], row = 0, phase = 2, playing = false, predict = false, substeps = false, speed = 1, timer = 0, ours = false;
	let focus = null, looked = null, asked = -1, guesses = new Set();
	let told = null; // the update whose source is shown in the header
	let growth = false, grown = null; // whether drafts grow level by level, and the current stage; null: fully grown
	const scored = new Map(); // row -> [right, guesses, right by confidence]

	const chooser = h("select", { "aria-label": "prompt" }, ...header.prompts.map((p, i) => h("option", { value: i }, `${p.prompt + 1}: ${[p.kind, p.language].filter(Boolean).join(", ") || "prompt"}`)));
	const updates = h("select", { "aria-label": "update" });
	const promptText = h("pre", { dir: "auto" }), promptLine = h("summary");
	const play = press(icon("play"), "play (space)", () => toggle(), { class: "play" });
	const where = h("output.where", { "aria-live": "off" });
	const steps = h("div.phases", { role: "group", "aria-label": "phase" }, ...PHASES.map((name, i) => press(name, `${name}: go to this phase of the cycle`, () => show(row, i, true))));
	const speeds = h("select", { "aria-label": "cycles per second", title: "cycles per second" }, ...SPEEDS.map((x) => h("option", { value: x }, `${x}/s`)));
	const byPhase = press("phases", "phases: step by phase (S)", () => setSub(!substeps), { "aria-pressed": "false" });
	const byLevel = press("growth", "growth: see each draft grow level by level, then the cut nodes (G)", () => setGrowth(!growth), { "aria-pressed": "false" });
	const guessing = press("predict", "predict mode (M): guess before the verdict is shown", () => setPredict(!predict), { "aria-pressed": "false" });
	const said = h("p.said", { "aria-live": "polite" });
	// The cycle's own signals, each with name and value.
	const signals = header.controls.map(([name, title, meaning]) => { const value = h("b"); return { name, value, node: h("span", { title: meaning }, `${title} `, value) }; });
	const board = h("div.board", { hidden: "" });
	const reveal = press("reveal (R)", "reveal the verdict", () => answer());
	const score = h("span.score", { "aria-live": "polite" });
	board.append(h("span", h("b", "Predict: "), "which draft tokens survive? Click them, or ↑ ↓ and Enter; then "), reveal, score);
	const help = overlay(root, "Keys of the player", header.keys);
	const overview = new Overview(record, (i) => seek(prompt.first + i));
	const finder = new Finder(record, () => ({ prompt, row }), (at, node) => { seek(at); if (node !== null && node < record.cycle(at).n && !waits(at)) { focus = node; ask(); } });
	const text = new TextLane(record, (at) => show(at, 2, true));
	const tree = new TreeLane(record, { look: (i) => { looked = i; ask(); }, focus: (i) => { focus = i; tree.roving(i); ask(); }, click: (i) => { focus = i; if (!mark(i)) ask(); }, grow: (k) => { stop(); grow(k); }, zoom: () => setZoom() });
	const whys = new WhyLane(record), time = new TimeLane(record), cache = new CacheLane(record), code = new CodeLane(record);
	const legend = h("div.legend", ...header.kinds.filter((_, k) => a.out_kind.includes(k)).map((k) => h("span", { title: k.meaning }, h("span", { class: `t ${k.name}` }, k.mark ? h("sup", k.mark) : "", k.word))));
	const notes = header.notes.map((note) => h("p.soft.note", note));
	const grid = h("div.grid", tree.node, h("div.side", whys.node, code.node)), pair = h("div.pair", time.node, cache.node);
	cache.node.hidden = textOnly(record);
	root.append(
		h("div.head", h("strong", run.method), h("span.soft", run.model + (run.draft ? ` ← ${run.draft}` : "")),
			exactness(run.exactness),
			header.prompts.length > 1 ? h("label.chooser", h("span.soft", "prompt "), chooser) : "",
			h("label.chooser", h("span.soft", "update "), updates),
			h("details.prompt", promptLine, promptText), legend,
			h("span.tools", press(icon("large"), "projector (P)", () => setProjector()), press("?", "keys (?)", () => help.toggle()))),
		...notes,
		h("div.controls", h("span.group", press(icon("first"), "the prefill (Home)", () => seek(prompt.first)), press(icon("back"), "back (←)", () => step(-1)), play, press(icon("on"), "on (→)", () => step(1), { class: "on" }), press(icon("last"), "the last cycle (End)", () => seek(prompt.last - 1))),
			overview.node, where, overview.tools, h("span.wrap", steps, byPhase, byLevel, guessing, speeds), finder.node,
			h("span.group", { role: "group", "aria-label": "save this view" }, press("SVG", "save this view as SVG (V)", () => save(saveSvg)), press("PNG", "save this view as PNG (Shift+V)", () => save(savePng)))),
		board, said, signals.length ? h("div.signals.soft", ...signals.map((one) => one.node)) : "", text.node,
		grid, pair);
	el.append(root);

	const startPhase = (at = row) => (growth || (predict && !scored.has(at)) ? 0 : 2);
	const save = (as) => as(root, `${run.method.replace(/[^\w-]+/g, "-")}-cycle-${record.cycle(row).number}`);
	const stage = () => (grown === null || phase > 0 ? null : growthOf(record.cycle(row))[grown] ?? null);
	const waits = (at) => predict && !scored.has(at) && record.cycle(at).sent > 0;

	function open(index) {
		prompt = header.prompts[index];
		chooser.value = index;
		promptLine.textContent = `Prompt${header.prompts.length > 1 ? ` ${prompt.prompt + 1}` : ""}: ${prompt.excerpt || "not in the trace"}`;
		promptText.textContent = prompt.text || "not in the trace";
		tree.first = prompt.first;
		overview.open(prompt.first, prompt.last, prompt.updates);
		updates.parentNode.hidden = !prompt.updates.length;
		updates.replaceChildren(...prompt.updates.map((u) => h("option", { value: u.first }, u.update)));
		time.scale(prompt.first, prompt.last);
	}
	// Draws everything at the cursor.
	function show(at, to, tellModel, stageAt = growth ? 0 : null) {
		at = Math.max(prompt.first, Math.min(prompt.last - 1, at));
		if (to > 0 || growthOf(record.cycle(at)).length < 2) stageAt = null;
		grown = stageAt;
		if (at !== row) { guesses = new Set(); focus = looked = null; tree.hover = null; }
		row = at;
		phase = waits(row) ? 0 : to;
		const cycle = record.cycle(row), whole = phase === 2 && !substeps && !predict && !growth, part = stage();
		const { update } = cycle;
		where.textContent = `cycle ${cycle.number} / ${a.cycle[(update ?? prompt).last - 1]}`;
		if (update && update !== told) {
			told = update;
			tree.first = update.first;
			updates.value = update.first;
			const old = update.source.slice(0, update.new);
			promptLine.replaceChildren("Source so far: ", old.length > 60 ? `… ${[...old].slice(-50).join("")}` : old, h("b", update.source.slice(update.new)));
			promptText.textContent = update.source;
		}
		[...steps.children].forEach((node, i) => { pressed(node, i === phase); node.disabled = waits(row) && i > 0; });
		const line = waits(row) ? `${narrate(cycle, 0, false, part)} Which survive?` : narrate(cycle, phase, whole, part);
		said.textContent = line;
		said.setAttribute("aria-live", playing && speed > 1 ? "off" : "polite");
		for (const { name, value } of signals) value.textContent = known(a[name]?.[row]) ? +a[name][row].toPrecision(3) : "–";
		overview.draw(row - prompt.first, `cycle ${cycle.number}, ${PHASES[phase]}`);
		text.draw(cycle, phase, prompt.first);
		plant();
		time.whole = code.whole = whole;
		time.draw(cycle, phase);
		cache.draw(cycle, phase);
		code.draw(cycle, phase, whole);
		guessed(cycle);
		keepFocus(root); // before the tab stops change
		need();
		ask();
		if (tellModel) tell();
		text.toEnd(); // last, so that a step causes a single layout
	}
	// In predict mode the draft keeps its order: an accepted path at the top would reveal the verdict.
	function plant() {
		const cycle = record.cycle(row);
		tree.draw(cycle, phase, predict && cycle.sent ? guesses : null, stage(), !predict);
	}
	// Advances the draft's growth; after the last step the draft is complete.
	function grow(k) {
		const stages = growthOf(record.cycle(row)).length;
		show(row, 0, true, Math.max(0, Math.min(stages - 1, k)));
	}
	// The node that the panel describes: under the pointer, focused, otherwise the most informative one.
	function ask() {
		const cycle = record.cycle(row);
		const best = cycle.rejected >= 0 && phase > 0 ? cycle.rejected : phase > 0 && cycle.extra >= 0 ? cycle.n : cycle.n ? tree.order[0] : null;
		const valid = (i) => i !== null && i < cycle.n + (phase > 0 && cycle.extra >= 0 ? 1 : 0) && tree.pool[i].g.had.display === "inline";
		const i = valid(looked) ? looked : valid(focus) ? focus : best;
		whys.draw(cycle, i, phase, stage());
		tree.light(i, valid(looked) || valid(focus));
		tree.roving(valid(focus) ? focus : i);
	}
	// Requests the chunk of this cycle, then the next one.
	function need() {
		const now = record.chunkOf(row);
		for (const number of [now, now + 1]) {
			if (number >= header.chunks || record.chunks.has(number)) continue;
			if (record.take(model.get("chunk")) === number) continue;
			if (asked !== number) {
				asked = number;
				share(model, { want: number });
			}
			return;
		}
	}
	function arrived() {
		const number = record.take(model.get("chunk"));
		if (number === asked) asked = -1;
		if (number === record.chunkOf(row)) { plant(); ask(); }
		need();
	}
	function tell() {
		const next = { prompt: header.prompts.indexOf(prompt), cycle: row - prompt.first, phase: PHASES[phase], playing, predict, substeps, growth, speed };
		share(model, Object.fromEntries(Object.entries(next).filter(([name, value]) => model.get(name) !== value)));
	}
	function seek(at) { stop(); show(at, startPhase(at), true); }
	// Steps by a cycle or one of its phases; in predict mode a step first reveals the verdict.
	function step(way, small = substeps || growth) {
		const stages = growthOf(record.cycle(row)).length;
		if (phase === 0 && grown !== null && grown + way >= 0 && grown + way < stages) { grow(grown + way); return; }
		if (way < 0 && phase === 1 && growth && stages > 1) { grow(stages - 1); return; }
		if (way > 0 && waits(row)) { answer(); return; }
		if (small && way > 0 && phase < 2) show(row, phase + 1, true);
		else if (small && way < 0 && phase > 0 && !record.cycle(row).prefill) show(row, phase - 1, true);
		else if (way > 0 ? row < prompt.last - 1 : row > prompt.first) show(row + way, small && way > 0 && !record.cycle(row + 1).prefill ? 0 : 2, true);
	}
	function stop() {
		clearTimeout(timer);
		if (!playing) return;
		playing = ours = claim(data, false);
		playSign(play, false);
		tell();
	}
	function toggle() {
		if (playing) { stop(); return; }
		if (row >= prompt.last - 1 && phase === 2) show(prompt.first, 2, false);
		playing = true;
		ours = claim(data, true); // before the other views hear of it
		playSign(play, true);
		tell();
		if (ours) beat();
	}
	function beat() {
		timer = setTimeout(() => {
			if (!root.isConnected || waits(row) || (row >= prompt.last - 1 && phase === 2)) { stop(); return; }
			step(1);
			beat();
		}, 1000 / speed / (substeps || growth ? 3 : 1));
	}
	function setSub(on) { substeps = on; pressed(byPhase, on); show(row, phase, true); }
	// Enters or leaves a mode: the prefill has no draft to grow or to guess.
	function enter(on) { show(on && record.cycle(row).prefill && row < prompt.last - 1 ? row + 1 : row, on ? 0 : startPhase(), true); }
	function setGrowth(on) {
		growth = on;
		pressed(byLevel, on);
		enter(on);
	}
	function setZoom() {
		tree.fit = !tree.fit;
		pressed(tree.zoom, !tree.fit);
		resize();
	}
	function setPredict(on) {
		stop();
		predict = on;
		pressed(guessing, on);
		board.hidden = !on;
		root.classList.toggle("predicting", on);
		arrange();
		enter(on);
	}
	function setProjector(on = !root.classList.contains("projector")) {
		root.classList.toggle("projector", on);
		share(model, { projector: on });
		resize();
	}
	// Marks a guess: a node survives with all its ancestors, and at most one child of each.
	function mark(i) {
		const cycle = record.cycle(row);
		if (!waits(row) || i >= cycle.n || ghost(cycle, i)) return false;
		const below = (j) => { guesses.delete(j); for (const k of cycle.children[j + 1]) below(k); };
		if (guesses.has(i)) below(i);
		else for (let j = i; j >= 0; j = cycle.parent[j]) {
			for (const k of cycle.children[cycle.parent[j] + 1]) if (k !== j) below(k);
			guesses.add(j);
		}
		plant();
		ask();
		return true;
	}
	function answer() {
		const cycle = record.cycle(row);
		if (!waits(row)) return;
		let right = 0, asked = 0, byBelief = 0;
		const sure = new Set();
		for (let i = 0; i < cycle.n; i++) {
			if (ghost(cycle, i)) continue;
			const survives = cycle.path.includes(i), parent = cycle.parent[i];
			if (tree.belief(cycle, null, i)[1] >= 0.5 && (parent < 0 || sure.has(parent))) sure.add(i);
			asked++;
			right += guesses.has(i) === survives;
			byBelief += sure.has(i) === survives;
		}
		scored.set(row, [right, asked, byBelief]);
		const [x, y] = model.get("score") ?? [0, 0]; // with those of earlier views
		share(model, { score: [x + right, y + asked] });
		show(row, substeps || growth ? 1 : 2, true);
	}
	function guessed(cycle) {
		if (!predict) return;
		reveal.disabled = !waits(row);
		const own = scored.get(row), all = [...scored.values()];
		const sum = (k) => all.reduce((x, y) => x + y[k], 0);
		const perfect = all.filter(([right, of]) => right === of).length;
		score.textContent = (own ? `${own[0]} of ${own[1]} right here. ` : cycle.sent ? "" : "Nothing to guess in this cycle. ") +
			(all.length ? `Score: ${sum(0)} of ${sum(1)} nodes (${Math.round((100 * sum(0)) / sum(1))} %), ${perfect} of ${count(all.length, "draft")} entirely right; trusting every q ≥ 0.5 would have scored ${sum(2)}.` : "");
	}
	function move(way) {
		const { order } = tree, at = order.indexOf(focus);
		if (!order.length) return;
		looked = null;
		focus = order[at < 0 ? (way > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, at + way))];
		tree.roving(focus);
		tree.pool[focus].g.focus(STAY);
		tree.pool[focus].g.scrollIntoView?.({ block: "nearest", inline: "nearest", behavior: still() ? "auto" : "smooth" });
		ask();
	}
	function turn(way) {
		const i = header.prompts.indexOf(prompt) + way;
		if (i >= 0 && i < header.prompts.length) choose(i);
	}
	function jump(way) {
		const i = prompt.updates.indexOf(record.cycle(row).update) + way;
		if (prompt.updates[i]) seek(prompt.updates[i].first);
	}
	function choose(i) { stop(); open(i); seek(prompt.first + prompt.opens); }

	keys(root, help, ({ key, shiftKey, target }) => (target === tree.growing && key.length > 1 ? {} : {
		ArrowRight: () => { stop(); step(1, shiftKey || substeps || growth); }, ArrowLeft: () => { stop(); step(-1, shiftKey || substeps || growth); },
		ArrowDown: () => move(1), ArrowUp: () => move(-1),
		Home: () => seek(prompt.first), End: () => seek(prompt.last - 1), " ": target.dataset?.i !== undefined && waits(row) ? () => mark(+target.dataset.i) : toggle,
		PageDown: prompt.updates.length ? () => jump(1) : null, PageUp: prompt.updates.length ? () => jump(-1) : null,
		Enter: target.dataset?.i !== undefined ? () => mark(+target.dataset.i) : null,
		s: () => setSub(!substeps), g: () => { stop(); setGrowth(!growth); }, z: () => setZoom(), m: () => setPredict(!predict), r: () => answer(),
		x: () => finder.rejection(shiftKey ? -1 : 1), w: () => finder.wait(shiftKey ? -1 : 1), "/": () => { finder.box.focus(); finder.box.select(); },
		"+": () => overview.zoom(2), "=": () => overview.zoom(2), "-": () => overview.zoom(0.5), 0: () => overview.zoom(0),
		",": () => overview.pan(-overview.span / 2), ".": () => overview.pan(overview.span / 2), v: () => save(shiftKey ? savePng : saveSvg),
		p: () => setProjector(), "[": () => turn(-1), "]": () => turn(1), "?": () => help.toggle(),
	}));
	// A click gives the player the keyboard focus.
	hear(root, "pointerdown", (event) => { if (!event.target.closest("button, select, input, summary, [tabindex='0']")) root.focus(STAY); });
	hear(chooser, "change", () => choose(+chooser.value));
	hear(updates, "change", () => seek(+updates.value));
	hear(speeds, "change", () => { speed = +speeds.value; tell(); });

	// Side by side if there is room, measured in em; a container query would cost one layout per step.
	function arrange() {
		root.classList.toggle("narrow", el.clientWidth < 58 * emOf(root));
		// the tree and its signals get the height left over by the other elements
		const narrow = root.classList.contains("narrow");
		tree.size(0, narrow);
		const { em } = tree, above = grid.offsetTop, below = narrow ? 0 : pair.offsetHeight + 0.6 * em;
		const own = tree.node.firstChild.offsetHeight + Math.max(tree.legend.offsetHeight, (tree.sources.length ? 2.8 : 1.4) * em) + 2.2 * em;
		const free = innerHeight - above - below - 0.8 * em;
		tree.size(narrow ? 42 * em : Math.max(16 * em, Math.min(42 * em, free - own)), narrow);
		root.style.setProperty("--tall", `${Math.max(22 * em, Math.min(free, whys.node.offsetHeight + code.tall + 2 * em))}px`);
		code.size();
	}
	function resize() { arrange(); show(row, phase, false, grown); }
	let width = 0;
	const observer = new ResizeObserver(() => { if (el.clientWidth !== width) { width = el.clientWidth; resize(); } });
	// Applies the state set by Python.
	const follow = () => {
		if (prompt !== header.prompts[model.get("prompt")]) open(model.get("prompt"));
		const at = prompt.first + (model.get("cycle") ?? prompt.opens), to = PHASES.indexOf(model.get("phase"));
		if (at !== row || to !== phase) show(at, to, false);
		share(model, { cycle: row - prompt.first });
	};
	const deaf = listen(root, model, [
		["change:prompt", follow], ["change:cycle", follow], ["change:phase", follow], ["change:chunk", arrived],
		["change:speed", setSpeed],
		...Object.entries({
			playing: [() => playing, toggle], predict: [() => predict, setPredict], substeps: [() => substeps, setSub], growth: [() => growth, setGrowth],
			projector: [() => root.classList.contains("projector"), setProjector],
		}).map(([name, [now, act]]) => [`change:${name}`, () => { if (model.get(name) !== now()) act(model.get(name)); }]),
	]);
	function setSpeed() {
		speed = model.get("speed");
		if (![...speeds.options].some((o) => +o.value === speed)) speeds.append(h("option", { value: speed }, `${speed}/s`));
		speeds.value = speed;
	}
	setSpeed();
	substeps = model.get("substeps");
	pressed(byPhase, substeps);
	root.classList.toggle("projector", model.get("projector"));
	open(model.get("prompt"));
	arrange();
	width = el.clientWidth;
	row = prompt.first;
	show(prompt.first + (model.get("cycle") ?? prompt.opens), PHASES.indexOf(model.get("phase")), false);
	resize(); // after everything is drawn
	if (model.get("growth")) setGrowth(true);
	if (model.get("predict")) setPredict(true);
	if (model.get("playing")) toggle();
	observer.observe(el);
	return () => {
		observer.disconnect();
		deaf();
		if (ours) stop();
	};
}

export default { render };
