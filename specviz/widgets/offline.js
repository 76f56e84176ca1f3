// Support for an offline page: a stand-in for the widget's model without a kernel, with state, listeners and chunks on demand.
const text = (id) => document.getElementById(id).textContent;
const views = JSON.parse(text("views"));
async function bytes(id) {
	const packed = Uint8Array.from(atob(text(id)), (c) => c.charCodeAt(0));
	const flow = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
	return new DataView(await new Response(flow).arrayBuffer());
}
class Model {
	constructor(state, chunk) { Object.assign(this, { state, chunk, heard: {} }); }
	get(name) { return this.state[name]; }
	on(name, act) { (this.heard[name] ??= []).push(act); }
	off(name, act) { this.heard[name] = (this.heard[name] ?? []).filter((other) => other !== act); }
	set(name, value) {
		if (this.state[name] === value) return;
		this.state[name] = value;
		for (const act of [...(this.heard[`change:${name}`] ?? [])]) act();
		if (name === "want") this.chunk(value).then((found) => this.set("chunk", found));
	}
	save_changes() {}
}
const modules = {};
async function module(name) {
	const source = () => URL.createObjectURL(new Blob([text(`module-${name}`)], { type: "text/javascript" }));
	return (await (modules[name] ??= import(source()))).default;
}
// Prepares a view with some of its traits overridden. Returns its model and a function that draws it and returns an undo.
async function drawn(i, told, place) {
	const view = views[i], state = { ...view.state, theme: "auto" };
	for (const name in told) if (name in state) state[name] = told[name];
	state.data = await bytes(`data-${i}`);
	state.chunk = view.chunks ? await bytes(`chunk-${i}-0`) : new DataView(new ArrayBuffer(0));
	const model = new Model(state, (number) => bytes(`chunk-${i}-${number}`));
	const { render } = await module(view.view);
	return [model, () => { place.replaceChildren(); return render({ model, el: place }) ?? (() => {}); }];
}
const lead = views[0].lead ? 1 : 0; // index of the first view to choose from
const runs = views.length - lead;
// The address holds the position, with runs counted from 1 and prompts by number (the nearest, if it is missing): #run=2&prompt=3&cycle=7.
function readAddress() {
	const told = new URLSearchParams(location.hash.slice(1)), number = (name) => (/^\d{1,9}$/.test(told.get(name) ?? "") ? +told.get(name) : null);
	const run = number("run") ?? 1, i = run >= 1 && run <= runs ? run - 1 : 0, state = {};
	if (["prompt", "cycle"].some((name) => number(name) !== null)) {
		const { numbers } = views[lead + i], from = (n) => Math.abs(n - (number("prompt") ?? numbers[0]));
		state.prompt = numbers.reduce((best, n, k) => (from(n) < from(numbers[best]) ? k : best), 0);
		state.cycle = number("cycle") ?? undefined; // undefined: the view chooses
	}
	return [i, state];
}
let pending = 0;
function writeAddress(run, model) {
	clearTimeout(pending); // browsers limit how often an address may change
	pending = setTimeout(() => {
		const parts = new URLSearchParams(), { prompt, cycle } = model.state;
		if (runs > 1) parts.set("run", run + 1);
		if (prompt > 0) parts.set("prompt", views[lead + run].numbers[prompt]);
		if (cycle !== undefined) parts.set("cycle", cycle);
		try { history.replaceState(null, "", `#${parts}`); } catch { /* a frame that has no address of its own */ }
	}, 200);
}
// Explains why the page is static if the browser cannot show a view.
function failed(error) {
	const line = document.getElementById("failed");
	line.hidden = false;
	line.textContent = `This browser cannot show the interactive view (${error.message})${document.querySelector(".still, #picture") ? "; the static picture is below" : ""}.`;
}
