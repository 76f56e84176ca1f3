// The live race: two or three methods decode one prompt, each in its own column. Built on tokens.js.

const PLACES = ["①", "②", "③"];
const NONE = "none";

function render({ model, el }) {
	const root = h("div.sv.live_race", { role: "group", "aria-label": "live race" });
	const entrants = () => [...model.get("entrants")];
	const pickers = [0, 1, 2].map((lane) => menu(
		`method ${lane + 1}`, () => (lane === 2 ? [NONE] : []).concat(model.get("methods")), () => entrants()[lane] ?? NONE,
		() => share(model, { entrants: pickers.map((each) => each.select.value).filter((name) => name !== NONE) })));
	const go = () => model.send({ do: "run", prompt: prompt.box.value, entrants: entrants() });
	const prompt = promptBox(model, go);
	const run = button("▶ Race", "decode with each method (Ctrl Enter)", go, { class: "main" });
	const stop = button("■ Stop", "stop after the current cycle (Escape); the texts so far are kept", () => model.send({ do: "stop" }));
	const state = h("p.leader");
	const error = h("p.error", { role: "alert" });
	const announcer = new Announcer();
	const legend = h("span.hues");
	const all = h("input", { type: "checkbox", checked: "" });
	hear(all, "change", () => root.classList.toggle("nodrafts", !all.checked));
	const columns = h("div.columns");
	let lanes = [];
	root.append(
		h("div.head", h("strong", `Race live on ${model.get("model")}`), ...pickers.map((each) => each.node)), prompt.box,
		h("div.buttons", run, stop), error, state, columns,
		h("div.legend", legend, h("label.show", all, " show dropped drafts")),
		h("p.soft", "The methods take turns: the one whose clock is furthest behind decodes its next cycle. Each clock counts only its own method's cycles, so no method is timed while another one computes."),
		announcer.node);
	el.append(root);

	function open() {
		lanes = model.get("lanes").map((name) => {
			const text = new Growing(model.get("kinds"), `the text by ${name}`);
			const clock = h("b.rate"), figures = h("span.soft"), place = h("span.place");
			return { name, text, clock, figures, place, node: h("section.column", h("h3", place, name), h("div.figures", clock, figures), text.node) };
		});
		columns.replaceChildren(...lanes.map((lane) => lane.node));
		columns.style.setProperty("--lanes", lanes.length);
	}
	const busy = () => ["waiting", "loading", "running"].includes(model.get("state"));
	function draw() {
		const finishes = model.get("finishes");
		const order = finishes.map((row, i) => i).filter((i) => finishes[i].ended).sort((a, b) => finishes[a].seconds - finishes[b].seconds);
		lanes.forEach((lane, i) => {
			const done = finishes[i], { text } = lane, speed = done?.speed ?? text.speed;
			lane.clock.textContent = text.prefill === null ? "" : ms(done?.seconds ?? text.seconds);
			lane.figures.replaceChildren(...[
				count(text.tokens, "token"), speed ? ` · ${perSecond(speed)} tokens/s` : "", done?.speedup ? ` · ${done.speedup.toFixed(2)}× without the prefill` : "",
				done ? exactness(done.exactness) : ""].filter(Boolean));
			lane.place.textContent = done?.ended ? `${PLACES[order.indexOf(i)]} ` : done ? "✂ " : "";
		});
		legend.replaceChildren(...merged().legend());
		all.parentElement.hidden = !lanes.some((lane) => lane.text.dropped);
		state.textContent = sentence();
	}
	function merged() { // one legend for all columns
		const one = new Growing(model.get("kinds"), "");
		for (const { text } of lanes) { text.used.forEach((kind) => one.used.add(kind)); one.dropped += text.dropped; }
		return one;
	}
	function sentence() {
		const now = model.get("state"), finishes = model.get("finishes");
		if (now === "waiting") return "Waiting until another decode has ended …";
		if (now === "loading") return `Loading ${model.get("model")}, and decoding a few tokens untimed …`;
		if (now === "stopped") return "Stopped; the texts so far are below.";
		if (now === "done" && finishes.length) {
			const [first, ...rest] = finishes.map((row, i) => i).sort((a, b) => finishes[a].seconds - finishes[b].seconds);
			const times = (i) => `${lanes[i].name} after ${ms(finishes[i].seconds)}, ${(finishes[i].seconds / finishes[first].seconds).toFixed(2)} times as long (prefill included)`;
			return `${lanes[first].name} finished first, after ${ms(finishes[first].seconds)}; ${rest.map(times).join("; ")}.`;
		}
		if (now !== "running") return "";
		const [winner] = model.get("over"); // the other clocks continue
		if (winner !== undefined) {
			const others = lanes.filter((_, i) => !model.get("over").includes(i));
			return `${lanes[winner].name} has finished after ${ms(lanes[winner].text.seconds)}${others.map((lane) => `; ${lane.name} has ${count(lane.text.tokens, "token")}`).join("")}.`;
		}
		const [lead, second] = [...lanes].sort((a, b) => b.text.tokens - a.text.tokens);
		const ahead = lead.text.tokens - second.text.tokens;
		return ahead ? `${lead.name} leads by ${count(ahead, "token")}.` : "Level.";
	}
	function receive(message) {
		if (message.do !== "cycles") return;
		lanes.forEach((lane, i) => {
			const own = message.cycles.filter((cycle) => cycle.lane === i);
			if (own.length) lane.text.add(own);
		});
		draw();
		if (!announcer.timer) announcer.say(sentence());
	}
	function drawShown() {
		const shown = model.get("shown");
		if (!lanes.length || shown.length === lanes.reduce((sum, lane) => sum + lane.text.received, 0)) return;
		for (const [i, lane] of lanes.entries()) { lane.text.clear(); lane.text.add(shown.filter((cycle) => cycle.lane === i)); }
		draw();
	}
	function drawState() {
		const now = model.get("state");
		run.disabled = busy();
		stop.disabled = !busy();
		for (const each of pickers) each.select.disabled = busy();
		keepFocus(root, busy() ? stop : run);
		if (now === "waiting") open();
		draw();
		if (now !== "running") announcer.say(sentence());
	}
	function drawError() { error.textContent = model.get("error"); }
	const putAll = () => pickers.forEach((each) => each.put());

	hear(root, "keydown", (event) => {
		if (event.key !== "Tab") event.stopPropagation(); // the notebook has its own shortcuts
		if (event.key === "Escape" && busy()) model.send({ do: "stop" });
	});
	open();
	drawShown();
	drawState();
	drawError();
	const deaf = listen(root, model, [
		["change:state", drawState], ["change:finishes", draw], ["change:over", draw], ["change:shown", drawShown], ["change:error", drawError],
		["change:prompt", prompt.put], ["change:entrants", putAll], ["change:methods", putAll], ["msg:custom", receive],
	]);
	model.send({ do: "open" });
	return () => { announcer.stop(); deaf(); };
}

export default { render };
