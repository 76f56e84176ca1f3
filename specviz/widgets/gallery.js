// A page with one leading view and others to choose by run and prompt, each with its static picture. Built on
// offline.js, which precedes this file.

const first = document.getElementById("first"), place = document.getElementById("place");
const picture = document.getElementById("picture"), run = document.getElementById("run"), prompt = document.getElementById("prompt");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const lead = views[0].lead ? 1 : 0; // index of the first view to choose from
let leave = () => {}, current = null;
async function draw() {
	const packed = await bytes(`still-${run.value}-${prompt.value}`);
	// Generated with this page, all text in it escaped; the content policy keeps anything in it from running.
	picture.replaceChildren(...new DOMParser().parseFromString(new TextDecoder().decode(packed), "text/html").body.childNodes);
}
let turn = 0; // number of the latest choice: an earlier one that loads later is discarded
async function choose() {
	const mine = ++turn;
	const [model, render] = await drawn(lead + +run.value, { prompt: +prompt.value, cycle: undefined }, place); // undefined: the view chooses
	if (mine !== turn) return;
	leave();
	leave = render();
	globalThis.specviz = current = model;
	model.on("change:prompt", () => { // changed in the view itself
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
