// The explorer's panel: controls made from declared parameters, a running decode, a table of results.
// All reckoning is Python's; this draws what the traits say. Built on shared.js, which stands in front.

const number = (v) => (Number.isInteger(v) ? String(v) : String(+v.toPrecision(4)));

// A symbol with its subscript: α_FB.
function symbol(text) {
	const [letter, below] = text.split("_");
	return text ? h("i", ` ${letter}`, below ? h("sub", below) : "") : "";
}

// A number as a column wants it: its digits, and what stands behind it.
const shape = (v, [digits, unit]) => v.toFixed(digits) + unit;

function render({ model, el }) {
	const root = h("div.sv.explore", { role: "group", "aria-label": "explorer" });
	const ask = (what, more) => model.send({ do: what, ...more });
	const parameters = model.get("parameters");

	// ---- controls
	const fields = new Map();
	const controls = h("div.fields", ...parameters.map((p) => field(p)));
	function change(name, value) {
		share(model, { values: { ...model.get("values"), [name]: value } });
	}
	// A slider that is dragged looks its answers up in a table that Python makes once for the others' settings;
	// what was dragged to is told when it is let go.
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
		const reset = button("↺", `${p.name}: back to ${p.default}`, () => { change(p.name, p.default); inputs.put(p.default); });
		reset.setAttribute("aria-label", `${p.name}: back to the default`);
		fields.set(p.name, { ...inputs, chip });
		return h("div.field", label, h("div.set", ...inputs.nodes, h("span.unit", p.unit), reset), chip, hint);
	}

	// ---- the rest
	const answerLine = h("p.answer", { "aria-live": "polite" });
	const code = h("code.code", { tabindex: "0", "aria-label": "these settings as code" });
	const copied = h("span.soft", { "aria-live": "polite" });
	const copy = button("Copy", "copy the line of code", async () => {
		try { await navigator.clipboard.writeText(model.get("code")); copied.textContent = "copied"; }
		catch { getSelection().selectAllChildren(code); copied.textContent = "marked: press Ctrl C"; }
		setTimeout(() => { copied.textContent = ""; }, 2500);
	});
	const run = button("▶ Decode", "decode with these settings", () => ask("run"));
	run.className = "main";
	const base = button(`▶ ${model.get("baseline")}`, "decode by the target alone, to compare with", () => ask("baseline"));
	const cancel = button("■ Cancel", "stop after the current cycle; the trace so far is kept", () => ask("cancel"));
	const race = button("Race all results", "the results side by side, at true relative speed", () => ask("race"));
	const bar = h("progress", { max: 1, value: 0, "aria-label": "tokens so far" });
	const state = h("span.soft.state");
	const growing = h("p.growing", { dir: "auto" });
	const error = h("p.error", { role: "alert" });
	const live = h("p.unseen", { "aria-live": "polite" });
	const table = h("div.scroll");
	root.append(
		h("div.head", h("strong", model.get("title"))), controls, answerLine,
		h("div.line", code, copy, copied),
		h("div.buttons", run, model.get("baseline") ? base : "", cancel, race, bar, state),
		error, growing, table, live);
	el.append(root);

	function drawValues() {
		const values = model.get("values");
		for (const [name, entry] of fields) entry.put(values[name]);
	}
	function drawCode() { code.textContent = model.get("code"); }
	function drawState() {
		const now = model.get("state"), p = model.get("progress"), busy = now === "running";
		run.disabled = base.disabled = busy;
		cancel.disabled = !busy;
		bar.hidden = !busy;
		bar.value = p.limit ? p.tokens / p.limit : 0;
		const told = p.limit ? `${p.tokens} of at most ${p.limit} tokens, ${p.cycles} cycles, ${p.seconds.toFixed(1)} s` : "";
		const words = { idle: "", running: `decoding: ${told}`, done: `done: ${told}`, cancelled: `cancelled, the trace so far is kept: ${told}`, error: "" };
		state.textContent = words[now];
		growing.textContent = p.text ?? "";
		error.textContent = model.get("error");
	}
	function sayState() {
		const now = model.get("state");
		live.textContent = now === "running" ? "decoding" : now === "done" ? "the decode is done; a row was added" : now;
	}
	function drawTable() {
		const rows = model.get("rows");
		race.disabled = rows.length < 2;
		if (!rows.length) { table.replaceChildren(h("p.soft", "Nothing has run yet: move the sliders and press Decode.")); return; }
		const names = parameters.map((p) => p.name);
		const columns = model.get("columns").filter(([key]) => rows.some((row) => row[key] !== null && row[key] !== undefined));
		const head = ["", "method", "", ...names, ...columns.map((c) => c[1]), "text is"];
		const titles = new Map(columns.map((c) => [c[1], c[3]]));
		const shown = (v) => (v === undefined || v === null ? "–" : typeof v === "number" ? number(v) : String(v));
		const body = rows.map((row) => {
			const open = button("Player", `step through run ${row.run}`, () => ask("play", { run: row.run }));
			open.setAttribute("aria-label", `open run ${row.run} in the player`);
			const use = row.method === model.get("method") ? button("Use", `move the sliders to run ${row.run}`, () => ask("use", { run: row.run })) : "";
			const same = row.same_text === true ? " = baseline's" : row.same_text === false ? " ≠ baseline's" : "";
			return h("tr", { class: row.run === model.get("chosen") ? "chosen" : "" },
				h("td.n", `${row.run}${row.complete ? "" : " ✂"}`), h("th", { scope: "row" }, row.method), h("td.acts", open, use),
				...names.map((name) => h("td.n", shown(row[name]))),
				...columns.map(([key, , form]) => h("td.n", row[key] === null || row[key] === undefined ? "–" : shape(row[key], form))),
				h("td.is", exactness(row.exactness), same, row.complete ? "" : h("small", " cut off")));
		});
		table.replaceChildren(h("table", h("thead", h("tr", ...head.map((word) => h("th", { scope: "col", title: titles.get(word) ?? "" }, word)))), h("tbody", ...body)));
	}

	// What a saved trace says about the current settings: Python's answer, with how sure it is.
	function drawAnswer(told = model.get("answer")) {
		const badges = model.get("badges");
		for (const [name, entry] of fields) {
			const known = badges[name];
			entry.chip.textContent = known ? known.badge : "";
			entry.chip.className = `chip ${known ? known.badge.replaceAll(" ", "-") : ""}`;
			entry.chip.title = known ? known.why : "";
		}
		answerLine.replaceChildren();
		if (!told.run) return;
		if (!told.badge) answerLine.append(`These are run ${told.run}'s settings.`);
		else if (told.text) answerLine.append(badge(told.badge), ` With ${told.words}, run ${told.run} would have taken ${told.text}. `, h("span.soft", told.why));
		else answerLine.append(badge(told.badge), ` ${told.words}: ${told.why}. `, again());
	}
	const badge = (word) => h("span", { class: `badge how ${word.replaceAll(" ", "-")}` }, word);
	const again = () => { const node = button("Decode", "decode with these settings", () => ask("run")); node.disabled = model.get("state") === "running"; return node; };

	hear(root, "keydown", (event) => {
		if (event.key !== "Tab") event.stopPropagation(); // the notebook has shortcuts of its own
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target.type === "range")) { event.preventDefault(); ask("run"); }
		if (event.key === "Escape" && model.get("state") === "running") ask("cancel");
	});
	drawValues();
	drawCode();
	drawState();
	drawTable();
	drawAnswer();
	return listen(root, model, [
		["change:values", drawValues], ["change:code", drawCode], ["change:progress", drawState], ["change:error", drawState],
		["change:state", () => { drawState(); sayState(); drawAnswer(); }], ["change:rows", drawTable], ["change:chosen", drawTable], ["change:answer", () => drawAnswer()], ["change:badges", () => drawAnswer()], ["change:lookup", drawDragged],
	]);
}

export default { render };
