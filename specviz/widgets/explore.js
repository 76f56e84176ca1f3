// The explorer's panel: pickers, a prompt box, controls built from declared parameters, the text while it is decoded, and a
// table of results. Python does all the computing; this draws the traits and messages. Built on tokens.js.

const BASELINE = "autoregressive";
const SIGNS = ["tau", "A/D", "A/O"]; // columns with a symbol for a heading
const number = (v) => (Number.isInteger(v) ? String(v) : String(+v.toPrecision(4)));

// A symbol with its subscript: α_FB.
function symbol(text) {
	const [letter, below] = text.split("_");
	return text ? h("i", ` ${letter}`, below ? h("sub", below) : "") : "";
}

const OPENS = 8000; // ms within which a requested view appears
const LAID_OUT = 400; // ms until its layout is final
// Scrolls to the view that Python opens below this one, once it appears.
function scrollToNext(el) {
	const stack = el.parentElement, before = stack.lastElementChild;
	const watch = new MutationObserver(() => {
		if ([el, before].includes(stack.lastElementChild)) return;
		watch.disconnect();
		// Jupyter inserts a placeholder first, so the last element is looked up again.
		setTimeout(() => stack.lastElementChild.scrollIntoView({ block: "start", behavior: still() ? "auto" : "smooth" }), LAID_OUT);
	});
	watch.observe(stack, { childList: true });
	setTimeout(() => watch.disconnect(), OPENS);
}

function render({ model, el }) {
	const root = h("div.sv.explore", { role: "group", "aria-label": "explorer" });
	const ask = (what, more) => model.send({ do: what, ...more });
	const openBelow = (what, more) => { scrollToNext(el); ask(what, more); };
	const decode = (what = "run") => ask(what, { prompt: prompt.box.value });
	let parameters = model.get("parameters");

	// ---- choice of model and method
	const target = menu("model", () => model.get("models"), () => model.get("model"), (name) => share(model, { model: name }));
	const method = menu("method", () => model.get("methods"), () => model.get("method"), (name) => share(model, { method: name }));
	const examples = menu("example", () => ["choose …", ...model.get("examples").map(([kind]) => kind)], () => "choose …", (kind) => {
		const chosen = model.get("examples").find(([each]) => each === kind);
		if (chosen) { prompt.box.value = chosen[1]; share(model, { prompt: chosen[1] }); }
		examples.put();
	});
	const prompt = promptBox(model, () => decode());

	// ---- controls
	const fields = new Map();
	const controls = h("div.fields");
	function drawFields() {
		parameters = model.get("parameters");
		fields.clear();
		controls.replaceChildren(...parameters.map((p) => field(p)));
		drawValues();
		drawTable();
	}
	function change(name, value) {
		share(model, { values: { ...model.get("values"), [name]: value } });
	}
	// While a slider is dragged, answers come from a table that Python builds once for the other settings;
	// the final value is sent when the slider is released.
	let dragged = null, wanted = "";
	const fixed = (p, values) => p.name + JSON.stringify(parameters.map((one) => (one === p ? 0 : values?.[one.name])));
	const fits = (p) => model.get("lookup").name === p.name && fixed(p, model.get("values")) === fixed(p, model.get("lookup").fixed);
	function tabulate(p) {
		const want = fixed(p, model.get("values")) + model.get("answer").run;
		if (fits(p) || wanted === want) return;
		wanted = want;
		ask("tabulate", { name: p.name });
	}
	function drag(p, value) {
		model.set("values", { ...model.get("values"), [p.name]: value });
		dragged = [p, value];
		drawDragged();
	}
	function drawDragged() {
		if (!dragged || !fits(dragged[0])) return;
		const [p, value] = dragged, entry = model.get("lookup").entries[Math.round((value - p.low) / p.step)];
		if (!entry) return;
		code.textContent = entry.code;
		error.textContent = entry.error ?? "";
		drawAnswer(entry.answer);
	}
	function field(p) {
		const id = unique();
		const label = h("label", { for: id }, h("b", p.name), symbol(p.symbol));
		const range = p.choices.length ? p.choices.join(", ") : "low" in p ? `${number(p.low)} to ${p.open ? "more than " : ""}${number(p.high)}` : "on or off";
		const hint = h("small", { id: `${id}h` }, `${p.meaning} Default ${p.default}; ${range}${p.unit ? ` ${p.unit}` : ""}.`);
		const chip = h("span.chip");
		let inputs;
		if (p.kind === "bool") {
			const box = h("input", { type: "checkbox", id, "aria-describedby": `${id}h` });
			hear(box, "change", () => change(p.name, box.checked));
			inputs = { nodes: [box], put: (v) => { box.checked = v; } };
		} else if (p.kind === "str") {
			const select = h("select", { id, "aria-describedby": `${id}h` }, ...p.choices.map((c) => h("option", { value: c }, c)));
			hear(select, "change", () => change(p.name, select.value));
			inputs = { nodes: [select], put: (v) => { select.value = v; } };
		} else {
			const slide = h("input", { type: "range", id, min: p.low, max: p.high, step: p.step, "aria-describedby": `${id}h` });
			const exact = h("input", { type: "number", step: p.kind === "int" ? 1 : "any", "aria-label": `${p.name}, as a number` });
			const at = () => +(+slide.value).toPrecision(6);
			for (const touch of ["pointerdown", "focus"]) hear(slide, touch, () => tabulate(p));
			hear(slide, "input", () => { tabulate(p); exact.value = number(at()); drag(p, at()); });
			hear(slide, "change", () => { dragged = null; change(p.name, at()); });
			hear(exact, "change", () => {
				const value = Number(exact.value);
				if (exact.value === "" || !Number.isFinite(value)) return;
				slide.value = value;
				change(p.name, value);
			});
			inputs = { nodes: [slide, exact], put: (v) => { if (document.activeElement !== slide) slide.value = v; if (document.activeElement !== exact) exact.value = number(v); } };
		}
		const reset = button("↺", `${p.name}: back to ${p.default}`, () => { change(p.name, p.default); inputs.put(p.default); }, { "aria-label": `${p.name}: back to the default` });
		fields.set(p.name, { ...inputs, chip });
		return h("div.field", label, h("div.set", ...inputs.nodes, h("span.unit", p.unit), reset), chip, hint);
	}

	// ---- other elements
	const answerLine = h("p.answer");
	const code = h("code.code", { tabindex: "0", "aria-label": "these settings as code" });
	const copied = h("span.soft", { "aria-live": "polite" });
	const copy = button("Copy", "copy the line of code", async () => {
		try { await navigator.clipboard.writeText(model.get("code")); copied.textContent = "copied"; }
		catch { getSelection().selectAllChildren(code); copied.textContent = "marked: press Ctrl C"; }
		setTimeout(() => { copied.textContent = ""; }, 2500);
	});
	const run = button("▶ Decode", "decode with these settings (Ctrl Enter)", () => decode(), { class: "main" });
	const base = button("▶ Decode without drafts", `${BASELINE}: with the target alone, for comparison`, () => decode("baseline"));
	const stop = button("■ Stop", "stop after the current cycle (Escape); the text so far is kept", () => ask("stop"));
	const live = button("▶ Race against the target alone", "decode with the target alone and with this method at the same time, side by side", () => openBelow("live"));
	const race = button("Replay all results", "the results of this prompt as a race, at true relative speed", () => openBelow("race"));
	const text = new Growing(model.get("kinds"), "the decoded text");
	const bar = h("progress", { max: 1, value: 0, "aria-label": "tokens so far" });
	const rate = h("b.rate"), state = h("span.soft.state");
	const legend = h("span.hues");
	const all = h("input", { type: "checkbox", checked: "" });
	hear(all, "change", () => root.classList.toggle("nodrafts", !all.checked));
	const idea = h("p.soft.idea"), meanings = h("p.soft");
	const error = h("p.error", { role: "alert" }), saved = h("p.soft.kept", { role: "status" });
	const announcer = new Announcer();
	const table = h("div.scroll");
	root.append(
		h("div.head", h("strong", "Explorer"), target.node, method.node, examples.node), idea, prompt.box,
		h("div.buttons", run, stop, base, live, race), error, saved,
		h("div.figures", rate, state, bar), text.node,
		h("div.legend", legend, h("label.show", all, " show dropped drafts")),
		table, meanings, answerLine, controls, h("div.line", code, copy, copied), announcer.node);
	el.append(root);

	function drawValues() {
		const values = model.get("values");
		for (const [name, entry] of fields) if (name in values) entry.put(values[name]);
	}
	function drawMethod() { method.put(); drawState(); drawTable(); }
	function drawIdea() { idea.textContent = model.get("idea"); }
	function drawCode() { code.textContent = model.get("code"); }
	const busy = () => ["waiting", "loading", "running"].includes(model.get("state"));
	const main = () => (busy() ? stop : run);
	function drawState() {
		const now = model.get("state");
		run.disabled = base.disabled = live.disabled = busy();
		live.hidden = base.hidden = model.get("method") === BASELINE || !model.get("methods").includes(BASELINE);
		stop.disabled = !busy();
		keepFocus(root, main());
		if (now === "waiting") { text.clear(); saved.textContent = ""; announcer.say("waiting"); }
		if (now === "done" || now === "stopped") announcer.say(`${text.heard} ${now === "done" ? "the decode is done" : "the decode was stopped"}; a row was added`);
		drawFigures();
	}
	function drawFigures() {
		const now = model.get("state"), limit = model.get("limit");
		const counted = `${count(text.tokens, "token")} in ${count(text.cycles, "cycle")}${text.cycles ? `, ${(text.tokens / text.cycles).toFixed(2)} a cycle` : ""}`;
		const words = {
			idle: "Press Decode.", waiting: "waiting until another decode has ended …", loading: `loading ${model.get("model")} …`, running: text.prefill === null ? "reading the prompt …" : counted,
			done: counted, stopped: `stopped: ${counted}`, error: "",
		};
		rate.textContent = text.speed ? `${perSecond(text.speed)} tokens/s` : "";
		state.textContent = words[now];
		bar.hidden = now !== "running";
		bar.value = limit ? text.tokens / limit : 0;
		legend.replaceChildren(...text.legend());
		all.parentElement.hidden = !text.dropped;
	}
	// Handles messages from Python during a decode.
	function receive(message, buffers) {
		if (message.do === "file") {
			download(new Blob([buffers[0]]), message.name);
			saved.textContent = `${message.name} is among the browser's downloads.`;
			return;
		}
		if (message.do !== "cycles") return;
		text.add(message.cycles);
		drawFigures();
		if (text.heard) { announcer.say(text.heard); text.heard = ""; }
	}
	// A view that opens later or missed messages draws everything.
	function drawShown() {
		if (model.get("shown").length === text.received) return;
		text.clear();
		text.add(model.get("shown"));
		text.heard = "";
		drawFigures();
	}
	function drawError() { error.textContent = model.get("error"); }
	function drawNote() { saved.textContent = model.get("note"); }
	function drawTable() {
		const rows = model.get("rows"), held = table.contains(document.activeElement) && document.activeElement.title;
		race.disabled = rows.length < 2;
		meanings.textContent = "";
		if (!rows.length) { table.replaceChildren(); return; }
		const names = parameters.map((p) => p.name);
		const columns = model.get("columns").filter(([key]) => rows.some((row) => row[key] !== null && row[key] !== undefined));
		const head = ["", "method", "", ...names, ...columns.map((c) => c[1]), "text is"];
		const titles = new Map(columns.map((c) => [c[1], c[3]]));
		const shown = (v) => (v === undefined || v === null ? "–" : typeof v === "number" ? number(v) : String(v));
		const body = rows.map((row) => {
			const open = button("Player", `step through run ${row.run}`, () => openBelow("play", { run: row.run }), { "aria-label": `open run ${row.run} in the player` });
			const save = button("Save", `save run ${row.run} as a trace: a .parquet file for specviz.open`, () => ask("save", { run: row.run }), { "aria-label": `save run ${row.run}` });
			const use = model.get("methods").includes(row.method) && row.method !== BASELINE ? button("Use settings", `choose run ${row.run}'s method and settings`, () => ask("use", { run: row.run })) : "";
			const same = row.same_text === true ? " = baseline's" : row.same_text === false ? " ≠ baseline's" : "";
			return h("tr", row.run === model.get("chosen") ? { class: "chosen", "aria-current": "true" } : {},
				h("td.n", `${row.run}${row.complete ? "" : " ✂"}`), h("th", { scope: "row" }, row.method), h("td.acts", open, save, use),
				...names.map((name) => h("td.n", shown(row[name]))),
				...columns.map(([key, , [digits, unit]]) => h("td.n", row[key] === null || row[key] === undefined ? "–" : row[key].toFixed(digits) + unit)),
				h("td.is", exactness(row.exactness), same, row.complete ? "" : h("small", " cut off")));
		});
		meanings.textContent = columns.filter(([key]) => SIGNS.includes(key)).map(([, sign, , words]) => `${sign}: ${words}`).join("; ");
		table.replaceChildren(h("table", h("thead", h("tr", ...head.map((word) => h("th", { scope: "col", title: titles.get(word) ?? "" }, word)))), h("tbody", ...body)));
		if (held) [...table.querySelectorAll("button")].find((node) => node.title === held)?.focus(STAY);
	}

	// Shows the what-if answer that Python derived from a saved trace, and how certain it is.
	function drawAnswer(told = model.get("answer")) {
		const badges = model.get("badges");
		for (const [name, entry] of fields) {
			const known = badges[name];
			entry.chip.textContent = known ? known.badge : "";
			entry.chip.className = `chip ${known ? known.badge.replaceAll(" ", "-") : ""}`;
			entry.chip.title = known ? known.why : "";
		}
		const before = answerLine.textContent;
		if (answerLine.contains(document.activeElement)) main().focus(STAY);
		answerLine.replaceChildren();
		if (!told.run) return;
		if (!told.badge) answerLine.append(`These are run ${told.run}'s settings.`);
		else if (told.text) answerLine.append(badge(told.badge), ` With ${told.words}, run ${told.run} would have taken ${told.text}. `, h("span.soft", told.why));
		else answerLine.append(badge(told.badge), ` ${told.words}: ${told.why}. `, again());
		if (answerLine.textContent !== before) announcer.say("", answerLine.textContent);
	}
	const badge = (word) => h("span", { class: `badge how ${word.replaceAll(" ", "-")}` }, word);
	const again = () => button("Decode", "decode with these settings", () => decode(), { disabled: busy() ? "" : null });

	hear(root, "keydown", (event) => {
		if (event.key !== "Tab") event.stopPropagation(); // the notebook has its own shortcuts
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target.type === "range")) { event.preventDefault(); decode(); }
		if (event.key === "Escape" && busy()) ask("stop");
	});
	drawFields();
	drawIdea();
	drawCode();
	drawShown();
	drawState();
	drawError();
	drawAnswer();
	const deaf = listen(root, model, [
		["change:model", target.put], ["change:models", target.put], ["change:method", drawMethod], ["change:methods", drawMethod],
		["change:examples", examples.put], ["change:prompt", prompt.put], ["change:parameters", drawFields],
		["change:values", drawValues], ["change:code", drawCode], ["change:idea", drawIdea], ["change:shown", drawShown], ["change:error", drawError], ["change:note", drawNote],
		["change:state", () => { drawState(); drawAnswer(); }], ["change:rows", drawTable], ["change:chosen", drawTable], ["change:answer", () => drawAnswer()], ["change:badges", () => drawAnswer()], ["change:lookup", drawDragged],
		["msg:custom", receive],
	]);
	ask("open");
	return () => { announcer.stop(); deaf(); };
}

export default { render };
