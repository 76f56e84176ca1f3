// An offline page: the widget's model without a kernel: state, listeners, and chunks on demand.
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
	const url = URL.createObjectURL(new Blob([text(`module-${name}`)], { type: "text/javascript" }));
	return (modules[name] ??= await import(url)).default;
}
// The address says where the page stands, as it counts runs, prompts and cycles: #run=2&prompt=3&cycle=7.
let shown = 0; // the view
function readAddress() {
	const told = new URLSearchParams(location.hash.slice(1)), number = (name) => (/^\d{1,9}$/.test(told.get(name) ?? "") ? +told.get(name) : null);
	const run = number("run") ?? 1, state = {};
	if (["prompt", "cycle"].some((name) => number(name) !== null)) state.prompt = Math.max(0, (number("prompt") ?? 1) - 1), state.cycle = number("cycle") ?? undefined; // undefined: the view chooses
	return [run >= 1 && run <= views.length ? run - 1 : 0, state];
}
let pending = 0;
function writeAddress(model) {
	clearTimeout(pending); // browsers bound how often an address may change
	pending = setTimeout(() => {
		const parts = new URLSearchParams(), { prompt, cycle } = model.state;
		if (views.length > 1) parts.set("run", shown + 1);
		if (prompt > 0) parts.set("prompt", prompt + 1);
		if (cycle !== undefined) parts.set("cycle", cycle);
		try { history.replaceState(null, "", `#${parts}`); } catch { /* a frame that has no address of its own */ }
	}, 200);
}
const place = document.getElementById("place"), buttons = [...document.querySelectorAll("nav button")];
let leave = () => {};
async function show(i, told = {}) {
	const view = views[i], state = { ...view.state, theme: "auto" };
	for (const name in told) if (name in state) state[name] = told[name];
	shown = i;
	state.data = await bytes(`data-${i}`);
	state.chunk = view.chunks ? await bytes(`chunk-${i}-0`) : new DataView(new ArrayBuffer(0));
	const model = new Model(state, (number) => bytes(`chunk-${i}-${number}`));
	const { render } = await module(view.view);
	leave();
	place.replaceChildren();
	leave = render({ model, el: place }) ?? (() => {});
	globalThis.specviz = model;
	for (const name of ["prompt", "cycle"]) if (name in state) model.on(`change:${name}`, () => writeAddress(model));
	buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
	document.querySelector(".still")?.removeAttribute("open");
}
buttons.forEach((button, i) => button.addEventListener("click", () => show(i).then(() => writeAddress(globalThis.specviz))));
addEventListener("hashchange", () => {
	const [i, told] = readAddress(), model = globalThis.specviz;
	if (i !== shown) show(i, told);
	else for (const name in told) if (name in model.state) model.set(name, told[name]);
});
show(...readAddress()).catch((error) => {
	const line = document.getElementById("failed");
	line.hidden = false;
	line.textContent = `This browser cannot show the interactive view (${error.message}); the still picture is below.`;
});
