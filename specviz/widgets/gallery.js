// A page of one view at its head, and of others to choose by run and prompt, each with its still picture. Built on
// offline.js, which stands in front of this text.

const first = document.getElementById("first"), place = document.getElementById("place");
const picture = document.getElementById("picture"), run = document.getElementById("run"), prompt = document.getElementById("prompt");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const lead = views[0].lead ? 1 : 0; // where those to choose from begin
let leave = () => {}, current = null;
async function draw() {
	const packed = await bytes(`still-${run.value}-${prompt.value}`);
	// Written by what wrote this page, every text in it escaped; the page's policy lets nothing in it run.
	picture.replaceChildren(...new DOMParser().parseFromString(new TextDecoder().decode(packed), "text/html").body.childNodes);
}
let turn = 0; // of the latest choice: an earlier one that is drawn later is not shown
async function choose() {
	const mine = ++turn;
	const [model, render] = await drawn(lead + +run.value, { prompt: +prompt.value, cycle: undefined }, place); // undefined: the view chooses
	if (mine !== turn) return;
	leave();
	leave = render();
	globalThis.specviz = current = model;
	model.on("change:prompt", () => { // chosen in the view itself
		if (model !== current || +prompt.value === model.get("prompt")) return;
		prompt.value = model.get("prompt");
		draw();
	});
	await draw();
}
run.addEventListener("change", choose);
prompt.addEventListener("change", choose);
(async () => {
	if (lead) {
		const [, render] = await drawn(0, { playing: !calm }, first);
		render();
	}
	await choose();
})().catch(failed);
