// A page that shows one view at a time, chosen by buttons. Built on offline.js, which precedes this file.

let shown = 0; // index of the view
const place = document.getElementById("place"), buttons = [...document.querySelectorAll("nav button")];
let leave = () => {};
async function show(i, told = {}) {
	shown = i;
	const [model, render] = await drawn(i, told, place), { state } = model;
	if (shown !== i) return; // another one was chosen in the meantime
	leave();
	leave = render();
	globalThis.specviz = model;
	for (const name of ["prompt", "cycle"]) if (name in state) model.on(`change:${name}`, () => writeAddress(shown, model));
	buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
	document.querySelector(".still")?.removeAttribute("open");
}
buttons.forEach((button, i) => button.addEventListener("click", () => show(i).then(() => writeAddress(shown, globalThis.specviz))));
addEventListener("hashchange", () => {
	const [i, told] = readAddress(), model = globalThis.specviz;
	if (i !== shown) show(i, told);
	else for (const name in told) if (name in model.state) model.set(name, told[name]);
});
show(...readAddress()).catch(failed);
