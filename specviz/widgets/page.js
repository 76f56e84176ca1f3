// A page that shows one view at a time, chosen by buttons. Built on offline.js, which precedes this file.

// The address holds the position, with runs and prompts counted from 1: #run=2&prompt=3&cycle=7.
let shown = 0; // index of the view
function readAddress() {
	const told = new URLSearchParams(location.hash.slice(1)), number = (name) => (/^\d{1,9}$/.test(told.get(name) ?? "") ? +told.get(name) : null);
	const run = number("run") ?? 1, state = {};
	if (["prompt", "cycle"].some((name) => number(name) !== null)) state.prompt = Math.max(0, (number("prompt") ?? 1) - 1), state.cycle = number("cycle") ?? undefined; // undefined: the view chooses
	return [run >= 1 && run <= views.length ? run - 1 : 0, state];
}
let pending = 0;
function writeAddress(model) {
	clearTimeout(pending); // browsers limit how often an address may change
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
	shown = i;
	const [model, render] = await drawn(i, told, place), { state } = model;
	if (shown !== i) return; // another one was chosen in the meantime
	leave();
	leave = render();
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
show(...readAddress()).catch(failed);
