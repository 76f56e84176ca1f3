// Live translation: a box for the source, with its translation below. Built on shared.js, which precedes this file.
// The text is sent to Python at the end of each word; Python returns the kept, new and erased text.

const PAUSE = 700; // ms without a key press after which an unfinished word is sent, too
const TYPED = 260; // ms per word when the box types by itself
const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}]$/u; // a script without spaces: every letter is sent

function render({ model, el }) {
	const root = h("div.sv.live", { role: "group", "aria-label": "live translation" });
	const box = h("textarea", { rows: 2, dir: "auto", spellcheck: "false", "aria-label": "source: type or paste", placeholder: "Type or paste a sentence …" });
	const lane = h("p.out", { dir: "auto", tabindex: "0", role: "region", "aria-label": "translation" });
	const gone = h("p.gone", { dir: "auto" });
	const figures = h("dl.figures");
	const error = h("p.error", { role: "alert" });
	const spoken = h("p.unseen", { "aria-live": "polite" }), waits = h("p.soft", { role: "status" });
	const sure = h("span");
	let timer = 0, typing = 0, sayer = 0, whole = "";

	// ---- the box
	function send(text) {
		if (model.get("source") === text) return;
		share(model, { source: text });
	}
	function typed(event) {
		clearTimeout(timer);
		if (event?.isComposing) return; // the input method is still composing
		const text = box.value;
		if (!text.trim() || /\s$/.test(text) || UNSPACED.test(text) || (event?.inputType ?? "").startsWith("insertFromPaste")) { send(text); return; }
		const begun = text.search(/\S+$/);
		if (text.slice(0, begun).trim()) send(text.slice(0, begun));
		timer = setTimeout(() => send(box.value), PAUSE);
	}
	function stop() { clearInterval(typing); typing = 0; box.readOnly = false; self.textContent = "▶ Type it"; }
	// Types the text automatically, word by word, or letter by letter in scripts without spaces.
	function retype() {
		if (typing) { stop(); box.value = whole; return; }
		whole = box.value;
		const words = whole.trim().match(/\s*(?:[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}]\p{M}*\p{P}*|[^\s\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}]+)/gu) ?? [];
		if (!words.length) return;
		let shown = 0;
		send("");
		self.textContent = "■ Stop";
		box.readOnly = true; // typed letters would be lost, and with them the rest of the text
		typing = setInterval(() => {
			box.value = words.slice(0, ++shown).join("");
			send(box.value);
			if (shown >= words.length) { stop(); model.send({ do: "finish" }); }
		}, TYPED);
	}
	hear(box, "input", typed);
	hear(box, "compositionend", () => typed());
	const self = button("▶ Type it", "the text types itself, word by word (Ctrl Enter)", retype, { class: "main" });
	const done = button("Done", "the source is complete: show the masked tokens (Enter twice)", () => { if (typing) retype(); clearTimeout(timer); send(box.value); model.send({ do: "finish" }); });
	const clear = button("Clear", "start over (Escape)", () => { stop(); clearTimeout(timer); box.value = ""; send(""); box.focus(); });

	// ---- the settings
	const change = (name, value) => share(model, { [name]: value });
	const puts = [];
	function number(name, sign, high, step, title) {
		const id = unique(), told = h("output", { for: id });
		const slide = h("input", { type: "range", id, min: 0, max: high, step });
		hear(slide, "input", () => { told.textContent = slide.value; });
		hear(slide, "change", () => change(name, +slide.value));
		const put = () => { const value = model.get(name); slide.max = Math.max(high, value); slide.value = value; told.textContent = String(value); };
		puts.push([name, put]);
		return h("span.set", { title }, h("label", { for: id }, sign), slide, told);
	}
	function choice(name, word, values, title) {
		const own = model.get(values);
		const select = h("select", ...own.map((value) => h("option", { value }, value)));
		hear(select, "change", () => change(name, select.value));
		puts.push([name, () => {
			const value = model.get(name);
			if (![...select.options].some((o) => o.value === value)) select.append(h("option", { value }, value));
			select.value = value;
		}]);
		return h("label.set", { title }, `${word} `, select);
	}
	const settings = h("div.controls", {},
		model.get("languages").length ? choice("target_language", "into", "languages", "the output's language") : "",
		choice("mode", "mode", "modes", "rt writes each update from scratch, ssbd verifies the previous output, cd continues after it"),
		number("beta", "β", 1, 0.05, "how much verification favours the draft (ssbd); from 0.5 on nothing is erased"),
		number("k", "mask k", 10, 1, "number of last tokens that are hidden until the source is complete"));

	root.append(
		h("div.head", h("strong", model.get("title")), sure), settings, box,
		h("div.controls", self, done, clear), waits, lane, gone, error, figures,
		h("div.legend", h("span", h("ins", "new"), " in this update"), h("span", h("del", "erased"), " by it"), h("span", h("b.mask", "▒"), " masked"), h("span", "everything else was kept")), spoken);
	el.append(root);

	// ---- results from Python
	function draw() {
		const { kept = "", new: fresh = "", erased = "", hidden = 0 } = model.get("shown");
		lane.replaceChildren(h("span", kept), fresh ? h("ins", fresh) : "", hidden ? h("b.mask", { title: count(hidden, "masked token") }, " " + "▒".repeat(Math.min(hidden, 12))) : "");
		gone.replaceChildren(erased ? h("del", erased) : "");
		clearTimeout(sayer); // announced to a screen reader once typing pauses
		sayer = setTimeout(() => { spoken.textContent = kept + fresh; }, 1200);
	}
	function rate(part, whole) { return whole ? (part / whole).toFixed(2) : "–"; }
	function drawFigures() {
		const f = model.get("figures"), known = f.updates > 0;
		sure.replaceChildren(known ? exactness(f.exactness) : "");
		const rows = !known ? [] : [
			["this update", f.ms === null ? "–" : ms(f.ms / 1e3), `for ${count(f.tokens, "token")}`],
			["A/D", rate(f.accepted, f.drafted), `${f.accepted} of ${f.drafted} drafted; ${rate(f.all_accepted, f.all_drafted)} over all`],
			["erased", count(f.erased, "token"), `${f.all_erased} over all`],
			["cache rows kept", `${f.reused} of ${f.prompt}`, h("span.bar", { role: "presentation" }, h("i", { style: `width:${(100 * f.reused) / f.prompt}%` }))],
			["updates", String(f.updates), f.skipped ? `${f.skipped} overtaken by newer text` : "none overtaken"],
		];
		figures.replaceChildren(...rows.map(([name, value, more]) => h("div", h("dt", name), h("dd", h("b", value), h("small", more)))));
	}
	function drawWaiting() { waits.textContent = model.get("waiting") ? "waiting until another decode has ended …" : ""; }
	function drawError() { error.textContent = model.get("error"); }
	function drawSource() { if (!typing && document.activeElement !== box && box.value !== model.get("source")) box.value = model.get("source"); }

	hear(root, "keydown", (event) => {
		if (event.key !== "Tab") event.stopPropagation(); // the notebook has its own shortcuts
		if (event.isComposing) return;
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); retype(); }
		else if (event.key === "Escape") clear.click();
		else if (event.key === "Enter" && event.target === box && /\n\s*$/.test(box.value)) { event.preventDefault(); done.click(); }
	});
	for (const [, put] of puts) put();
	draw();
	drawFigures();
	drawError();
	drawWaiting();
	drawSource();
	const deaf = listen(root, model, [
		["change:shown", draw], ["change:figures", drawFigures], ["change:error", drawError], ["change:waiting", drawWaiting], ["change:source", drawSource],
		...puts.map(([name, put]) => [`change:${name}`, put]),
	]);
	return () => { stop(); clearTimeout(timer); clearTimeout(sayer); deaf(); };
}

export default { render };
