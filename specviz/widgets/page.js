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
const place = document.getElementById("place"), buttons = [...document.querySelectorAll("nav button")];
let leave = () => {};
async function show(i) {
	const view = views[i], state = { ...view.state, theme: "auto" };
	state.data = await bytes(`data-${i}`);
	state.chunk = view.chunks ? await bytes(`chunk-${i}-0`) : new DataView(new ArrayBuffer(0));
	const model = new Model(state, (number) => bytes(`chunk-${i}-${number}`));
	const { render } = await module(view.view);
	leave();
	place.replaceChildren();
	leave = render({ model, el: place }) ?? (() => {});
	globalThis.specviz = model;
	buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
	document.querySelector(".still")?.removeAttribute("open");
}
buttons.forEach((button, i) => button.addEventListener("click", () => show(i)));
show(0).catch((error) => {
	const line = document.getElementById("failed");
	line.hidden = false;
	line.textContent = `This browser cannot show the interactive view (${error.message}); the still picture is below.`;
});
