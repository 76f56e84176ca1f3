// The live flicker ribbon: a cursor (update) and two sliders (β, k). Built on shared.js, which precedes this file.
// Layout, and how far and how certainly a β is answered, are looked up in tables computed in Python.

const FATED = ["erased", "kept", "rewritten", "new", "hidden"];
const MARKS = ["", "u", "unseen-draft"];
const TAGS = { erased: "s", kept: "span", hidden: "i" };
const AROUND = 7; // rows around the cursor that are drawn for a long stream

function render({ model, el }) {
	const data = model.get("data"), { header } = unpack(data), { sources, columns, unit } = header, last = sources.length - 1;
	const state = {}; // update, beta, k
	let playing = false, ours = false, timer = 0;
	const root = h("div", { class: "sv ribbon flicker", tabindex: "-1", role: "group", "aria-label": "flicker ribbon of a stream" });
	// Builds a slider over the values of one state variable.
	const slider = (name, title, values, say) => {
		const input = h("input", { type: "range", min: 0, max: values.length - 1, "aria-label": title }), told = h("output");
		hear(input, "input", () => { stop(); set(name, values[input.value]); });
		return {
			node: values.length > 1 ? h("label", { class: name }, title.split(",")[0], input, told) : "",
			move: (way) => { stop(); set(name, values[Math.max(0, Math.min(values.length - 1, values.indexOf(state[name]) + way))]); },
			draw: () => { input.value = values.indexOf(state[name]); told.textContent = say(state[name]); input.setAttribute("aria-valuetext", told.textContent); },
			values,
		};
	};
	const sliders = {
		update: slider("update", "update", sources.map((_, i) => i), (i) => sources[i][0]),
		beta: slider("beta", "β", header.betas, (x) => x), k: slider("k", "k, hidden tokens", header.ks, (x) => (x < 0 ? "as run" : x)),
	};
	const play = press(icon("play"), "play (space)", () => toggle()), said = h("p", { class: "live", "aria-live": "polite" });
	const drafts = h("input", { type: "checkbox", class: "sv-drafts" });
	const help = overlay(root, "Keys of the ribbon", header.keys);
	const large = (on = !root.classList.contains("projector")) => { root.classList.toggle("projector", on); tell({ projector: on }); };
	const heads = columns.map(() => {
		const own = { name: h("strong"), badge: h("span"), what: h("span", { class: "badge what" }), nums: h("small", { class: "nums" }), screen: words("screen"), map: s("svg", { class: "map", width: "100%", role: "img" }) };
		hear(own.map, "click", ({ offsetY }) => { stop(); set("update", Math.floor(offsetY / tall)); });
		return own;
	});
	const row = (title, note, cells, more = {}) => h("tr", more, h("th", title, h("br"), h("small", note)), ...cells);
	const body = h("tbody"), tall = Math.max(2, Math.min(12, 150 / sources.length));
	root.append(
		h("div", { class: "head" }, h("strong", header.title), h("span", { class: "soft" }, header.model),
			h("span", { class: "keys" }, ...FATED.map((fate) => h("span", { title: header.fates[fate] }, word("words", fate), ` ${fate}`)),
				h("span", { class: "u" }, "from the draft"), h("span", { class: "unseen-draft" }, "from the draft, unseen"), h("label", drafts, " show drafts (D)")),
			h("span", { class: "tools" }, press(icon("large"), "projector (P)", () => large()), press("?", "keys (?)", () => help.toggle()))),
		h("div", { class: "controls" }, press(icon("back"), "the previous update (←)", () => sliders.update.move(-1)), play, press(icon("on"), "the next update (→)", () => sliders.update.move(1)),
			...Object.values(sliders).map((one) => one.node)), said,
		h("div", { class: "scroll" }, h("table", h("colgroup", h("col.src")), h("thead",
			row("Source", "what each update adds", heads.map((own) => h("th", { scope: "col" }, own.name, " ", own.badge, " ", own.what, own.nums))),
			row("The display", "at the cursor", heads.map((own) => h("td", own.screen))),
			row("All updates", "click to go there", heads.map((own) => h("td", own.map)), { class: "maps" })), body)));
	el.append(root);

	function words(name) { return h("div", { class: name, dir: "auto", lang: header.language }); }
	function word(text, fate, mark = "") {
		return h(TAGS[fate] ?? "b", { class: `${fate === "kept" ? "" : fate} ${mark}` }, text.replace(UNSEEN, shownToken).replace(/\n/g, "⏎\n"));
	}
	// The view of a column: the run that answers this β, how far and how certainly, and how its words are cut at this k.
	function look(column) {
		const [, run, until, badge, why, sure] = column.betas.find(([beta]) => beta === state.beta) ?? [0, 0, column.betas.length ? 0 : last + 1, "", "", {}];
		const k = state.k < 0 || column.masked ? column.k : state.k, told = column.runs[run];
		return { ...told, ...sure, name: column.name + (badge && `, β = ${state.beta}`), until, why, cuts: told.cuts[k], badge: [badge && `β: ${badge}`, k !== column.k && "k: exact"].filter(Boolean).join(", ") };
	}
	// Spans of words: [fate, text, mark, count]; erased text appears where the display diverged.
	function cut(seen, i) {
		let place = 0;
		return seen.cuts.rows[i].map(([fate, a, b, n]) => [FATED[fate], fate ? seen.rows[i][0].slice(place, place += b) : seen.rows[i - 1][0].slice(a, b), fate ? MARKS[a] : "", n]);
	}
	const written = (runs) => runs.flatMap(([fate, text, mark]) => [text.startsWith(" ") ? " " : "", word(text.replace(/^ /, ""), fate, mark)]);
	const counts = (runs) => FATED.map((fate) => [runs.reduce((n, run) => n + (run[0] === fate) * run[3], 0), fate]).filter(([n, fate]) => n || fate === "erased").map((pair) => pair.join(" "));
	function cell(seen, i) {
		if (i >= seen.until) return h("td", { class: "unknown" }, h("p", { class: "said" }, i > seen.until ? "needs a rerun" : `needs a rerun: ${seen.why}`));
		const runs = cut(seen, i), [, draft, more, took] = seen.rows[i], out = words("out");
		out.append(...written(runs));
		return h("td", out, h("p", { class: "draft-line" }, "draft: ", ...draft.map(([mark, text]) => h("span", { class: mark }, text))),
			h("p", { class: "said" }, [...counts(runs), ...more].join(" · ")), s("svg.took", { "aria-hidden": "true" }, ...took.map((part, k) => s("rect", { x: `${k ? took[0] : 0}%`, width: `${part}%`, height: "100%" }))));
	}
	function source(i) {
		const [name, , before, gone, fresh, cache] = sources[i];
		return h("th", { scope: "row" }, h("small", name), h("br"), before, h("s", gone), h("b", fresh), h("p", { class: "said" }, cache));
	}
	function map(own, seen) {
		const drawn = [], x = (n) => `${(100 * n) / unit}%`;
		for (let i = 0; i < Math.min(seen.until, last + 1); i++) {
			const y = (i + 0.5) * tall;
			let at = 0;
			const late = []; // drawn on top of the others
			for (const [fate, , , n] of cut(seen, i)) {
				const thick = { erased: 1.5, kept: 0.3 * tall }[fate] ?? 0.8 * tall;
				(fate === "erased" ? late : drawn).push(fate === "hidden" ? s("rect", { class: "m-hidden", x: x(at), width: x(n), y: y - 0.35 * tall, height: 0.7 * tall })
					: s("line", { class: `m-${fate}`, x1: x(at), x2: x(at + n), y1: y, y2: y, "stroke-width": thick }));
				if (fate !== "erased") at += n;
			}
			drawn.push(...late);
		}
		own.map.setAttribute("height", sources.length * tall);
		own.map.setAttribute("aria-label", `map of ${count(sources.length, "update")}`);
		own.map.replaceChildren(...drawn, s("rect", { class: "m-now", width: "100%", y: state.update * tall, height: tall }));
	}
	function show() {
		const seen = columns.map(look), at = state.update;
		for (const one of Object.values(sliders)) one.draw();
		said.textContent = `Update ${sources[at][0]}. ${seen.map((one) => `${one.name}: ${at < one.until ? counts(cut(one, at)).join(", ") : "needs a rerun"}`).join("; ")}.`;
		said.setAttribute("aria-live", playing ? "off" : "polite");
		heads.forEach((own, j) => {
			const one = seen[j];
			own.name.textContent = one.name;
			own.badge.className = `badge ${one.kind}`;
			own.badge.textContent = one.exactness;
			own.what.hidden = !one.badge;
			own.what.textContent = one.badge;
			own.what.title = one.why;
			own.nums.textContent = one.until > last ? [one.cuts.erased, ...one.numbers].join(" · ") : "";
			own.screen.replaceChildren(...(at < one.until ? written(cut(one, at).filter(([fate]) => fate !== "erased" && fate !== "hidden")) : [h("small", "needs a rerun")]));
			map(own, one);
		});
		const most = 2 * AROUND + 1, from = Math.max(0, Math.min(at - AROUND, last + 1 - most));
		body.replaceChildren(...sources.slice(from, from + most).map((_, j) => {
			const i = from + j, line = h("tr", i === at ? { class: "now", "aria-current": "step" } : {}, source(i), ...seen.map((one) => cell(one, i)));
			hear(line, "click", () => { stop(); set("update", i); });
			return line;
		}));
	}
	const tell = (now) => share(model, now);
	function set(name, value) {
		if (value === undefined) return;
		state[name] = name === "update" ? Math.max(0, Math.min(last, value)) : value;
		show();
		tell(state);
	}
	function run(on) {
		clearTimeout(timer);
		if (playing === on) return;
		playing = on;
		ours = claim(data, on); // before the other views hear of it
		playSign(play, on);
		tell({ playing });
	}
	function stop() { run(false); }
	function toggle() {
		run(!playing);
		if (!playing) return;
		if (state.update === last) set("update", 0);
		if (ours) beat();
	}
	// The delay until the next update arrived; one second for a stream without a clock.
	function beat() {
		const [now, next] = [0, 1].map((ahead) => sources[state.update + ahead]?.[1] ?? NaN), gap = next - now;
		timer = setTimeout(() => {
			if (!root.isConnected || state.update === last) { stop(); return; }
			set("update", state.update + 1);
			beat();
		}, 1000 * (gap > 0 ? Math.min(3, Math.max(0.15, gap)) : 1));
	}
	keys(root, help, ({ key, target }) => (target.type === "range" && key.length > 1 ? {} : { // a slider handles arrows, Home and End itself
		ArrowRight: () => sliders.update.move(1), ArrowLeft: () => sliders.update.move(-1), Home: () => sliders.update.move(-last), End: () => sliders.update.move(last),
		"]": () => sliders.beta.move(1), "[": () => sliders.beta.move(-1), "+": () => sliders.k.move(1), "-": () => sliders.k.move(-1),
		" ": toggle, d: () => drafts.click(), p: () => large(), "?": () => help.toggle(),
	}));
	// Applies the state set by Python.
	const follow = () => {
		for (const [name, { values }] of Object.entries(sliders)) state[name] = values.includes(model.get(name)) ? model.get(name) : values[name === "update" ? last : 0];
		show();
	};
	const deaf = listen(root, model, [
		...Object.keys(sliders).map((name) => [`change:${name}`, () => { if (model.get(name) !== state[name]) follow(); }]),
		["change:playing", () => { if (model.get("playing") !== playing) toggle(); }],
		["change:projector", () => root.classList.toggle("projector", model.get("projector"))],
	]);
	root.classList.toggle("projector", model.get("projector"));
	follow();
	if (model.get("playing")) toggle();
	return () => { deaf(); root.remove(); if (ours) stop(); };
}

export default { render };
