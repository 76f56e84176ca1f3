// Draggable view of the rejection rule. Left: p and q with their overlap; right: the output law, with p as a line above it.
const RULES = {
	right: "accept with min(1, p/q), else draw from max(0, p − q)",
	"resample from p": "shortcut (a): after a rejection draw from p",
	"accept iff p >= q": "shortcut (b): accept if and only if p ≥ q",
	"argmax draft": "shortcut (c): draft the argmax, use its softmax as q",
};
const HIGH = 200, WIDE = 340, FOOT = 22;
const letter = (i) => String.fromCharCode(65 + i);

// The rule's outcome for p and q: the accepted part, and the part drawn after a rejection.
function outcome(p, q, rule) {
	const best = q.indexOf(Math.max(...q));
	const drafted = rule === "argmax draft" ? q.map((_, i) => +(i === best)) : q;
	const accept = p.map((x, i) => (rule === "accept iff p >= q" ? +(x >= q[i]) : q[i] > 0 ? Math.min(1, x / q[i]) : 0));
	let rest = p.map((x, i) => Math.max(0, x - q[i]));
	if (rule === "resample from p" || !rest.some((x) => x > 0)) rest = p;
	const kept = drafted.map((x, i) => x * accept[i]), sum = (list) => list.reduce((a, b) => a + b, 0);
	const left = 1 - sum(kept), whole = sum(rest);
	return { kept, drawn: rest.map((x) => (left * x) / whole), accepted: sum(kept) };
}
// A distribution with one bar set; the others are rescaled to share the rest in proportion.
function moved(list, i, value) {
	const now = Math.min(1, Math.max(0, value)), others = 1 - list[i];
	return list.map((x, k) => (k === i ? now : others > 1e-9 ? (x * (1 - now)) / others : (1 - now) / (list.length - 1)));
}

function render({ model, el }) {
	const root = h("div.sv.acceptance", { role: "group", "aria-label": "the rejection rule" });
	const id = unique();
	const choice = h("select", { id }, ...Object.entries(RULES).map(([name, word]) => h("option", { value: name }, word)));
	const left = s("svg", { viewBox: `0 0 ${WIDE} ${HIGH + FOOT}`, role: "group", "aria-label": "p and q: drag their tops" });
	const right = s("svg", { viewBox: `0 0 ${WIDE} ${HIGH + FOOT}`, role: "img" });
	const figures = h("p.figures", { "aria-live": "polite" });
	const y = (value) => HIGH - value * (HIGH - 12);
	const slot = () => WIDE / model.get("p").length;

	function bar(svg, kind, x, from, to, width) {
		svg.append(s("rect", { class: kind, x, y: y(to), width, height: Math.max(0, y(from) - y(to)) }));
	}
	function handle(name, i, x, width) {
		const value = model.get(name)[i];
		const node = s("g.handle", { class: `handle ${name}`, tabindex: "0", role: "slider", "aria-label": `${name} of token ${letter(i)}`, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": value.toFixed(2), "data-of": `${name}${i}` });
		node.append(s("rect", { x, y: y(value) - 7, width, height: 14, class: "grip" }), s("line", { x1: x, x2: x + width, y1: y(value), y2: y(value) }));
		const set = (to) => share(model, { [name]: moved(model.get(name), i, to) });
		hear(node, "keydown", (event) => {
			const step = { ArrowUp: 0.02, ArrowRight: 0.02, ArrowDown: -0.02, ArrowLeft: -0.02 }[event.key];
			if (!step) return;
			event.preventDefault();
			event.stopPropagation();
			set(model.get(name)[i] + step);
		});
		hear(node, "pointerdown", (event) => {
			event.preventDefault();
			const drag = (at) => {
				const box = left.getBoundingClientRect();
				set((HIGH - ((at.clientY - box.top) / box.height) * (HIGH + FOOT)) / (HIGH - 12));
			};
			const ends = ["pointerup", "pointercancel"];
			const stop = () => { removeEventListener("pointermove", drag); for (const end of ends) removeEventListener(end, stop); };
			addEventListener("pointermove", drag);
			for (const end of ends) addEventListener(end, stop);
		});
		return node;
	}
	function draw() {
		const p = model.get("p"), q = model.get("q"), rule = model.get("rule");
		const { kept, drawn, accepted } = outcome(p, q, rule);
		const focus = root.contains(document.activeElement) ? document.activeElement?.dataset?.of : null;
		choice.value = rule;
		left.replaceChildren();
		right.replaceChildren();
		const wide = slot(), half = wide * 0.36;
		p.forEach((x, i) => {
			const at = i * wide + wide * 0.1;
			bar(left, "p", at, 0, x, half);
			bar(left, "q", at + half + 2, 0, q[i], half);
			bar(left, "both", at, 0, Math.min(x, q[i]), half * 2 + 2);
			for (const svg of [left, right]) svg.append(s("text", { x: at + half, y: HIGH + 15, class: "name" }, letter(i)));
			bar(right, "kept", at, 0, kept[i], half * 2);
			bar(right, "drawn", at, kept[i], kept[i] + drawn[i], half * 2);
			right.append(s("line", { class: "goal", x1: at - 3, x2: at + half * 2 + 3, y1: y(x), y2: y(x) }));
		});
		for (const name of ["p", "q"]) p.forEach((_, i) => left.append(handle(name, i, i * wide + wide * 0.1 + (name === "q" ? half + 2 : 0), half)));
		const off = p.reduce((sum, x, i) => sum + Math.abs(kept[i] + drawn[i] - x), 0) / 2;
		figures.textContent = `accepted ${accepted.toFixed(3)} · rejected ${(1 - accepted).toFixed(3)} · distance of the output from p: ${off.toFixed(3)}`;
		figures.classList.toggle("wrong", off > 5e-4);
		right.setAttribute("aria-label", `output: ${kept.map((x, i) => `${letter(i)} ${(x + drawn[i]).toFixed(2)}`).join(", ")}`);
		if (focus) left.querySelector(`[data-of=${focus}]`)?.focus();
	}
	hear(choice, "change", () => share(model, { rule: choice.value }));
	const key = (kind, word) => h("span", h("i", { class: kind }), word);
	root.append(
		h("div.controls", h("label", { for: id }, "rule"), choice),
		h("div.panels",
			h("figure", h("figcaption", "Drag the bars: the target's p and the drafter's q"), left),
			h("figure", h("figcaption", "The output distribution; the lines are p"), right)),
		h("div.legend", key("p", "p"), key("q", "q"), key("kept", "accepted; on the left: min(p, q)"), key("drawn", "drawn after a rejection")),
		figures);
	el.append(root);
	draw();
	return listen(root, model, ["p", "q", "rule"].map((name) => [`change:${name}`, draw]));
}
export default { render };
