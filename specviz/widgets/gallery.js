// A page with one leading view and others to choose by run and prompt, each with its static picture. Built on
// offline.js, which precedes this file.

const first = document.getElementById("first"), place = document.getElementById("place");
const picture = document.getElementById("picture"), run = document.getElementById("run"), prompt = document.getElementById("prompt");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
let leave = () => {}, current = null;
async function draw() {
	const packed = await bytes(`still-${run.value}-${prompt.value}`);
	// Generated with this page, all text in it escaped; the content policy keeps anything in it from running.
	picture.replaceChildren(...new DOMParser().parseFromString(new TextDecoder().decode(packed), "text/html").body.childNodes);
}
let turn = 0; // number of the latest choice: an earlier one that loads later is discarded
async function choose(told = {}) {
	const mine = ++turn, i = +run.value;
	if ("prompt" in told) prompt.value = told.prompt;
	const [model, render] = await drawn(lead + i, { prompt: +prompt.value, cycle: told.cycle }, place); // undefined: the view chooses
	if (mine !== turn) return;
	leave();
	leave = render();
	globalThis.specviz = current = model;
	model.on("change:prompt", () => { // changed in the view itself
		if (model !== current || +prompt.value === model.get("prompt")) return;
		prompt.value = model.get("prompt");
		draw();
	});
	for (const name of ["prompt", "cycle"]) model.on(`change:${name}`, () => model === current && writeAddress(i, model));
	await draw();
}
for (const picker of [run, prompt]) picker.addEventListener("change", () => choose().then(() => writeAddress(+run.value, current)));
addEventListener("hashchange", () => {
	const [i, told] = readAddress();
	if (i !== +run.value) run.value = i, choose(told);
	else for (const name in told) current?.set(name, told[name]);
});
(async () => {
	if (lead) {
		const [, render] = await drawn(0, { playing: !calm }, first);
		render();
	}
	const [i, told] = readAddress();
	run.value = i;
	await choose(told);
})().catch(failed);
