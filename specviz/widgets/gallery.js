// A page with one leading view and others to choose by run and prompt, each with its static picture. Built on
// offline.js, which precedes this file.

const first = document.getElementById("first"), place = document.getElementById("place");
const picture = document.getElementById("picture"), run = document.getElementById("run"), prompt = document.getElementById("prompt");
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const lead = views[0].lead ? 1 : 0; // index of the first view to choose from
const runs = views.length - lead;
let leave = () => {}, current = null;
// The position that the address holds; a prompt after the last one is the last.
function position() {
	const [i, told] = readAddress(runs);
	if ("prompt" in told) told.prompt = Math.min(told.prompt, prompt.options.length - 1);
	return [i, told];
}
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
	for (const name of ["prompt", "cycle"]) model.on(`change:${name}`, () => model === current && writeAddress(i, runs, model));
	await draw();
}
for (const picker of [run, prompt]) picker.addEventListener("change", () => choose().then(() => writeAddress(+run.value, runs, current)));
addEventListener("hashchange", () => {
	const [i, told] = position();
	if (i !== +run.value) run.value = i, choose(told);
	else for (const name in told) current?.set(name, told[name]);
});
(async () => {
	if (lead) {
		const [, render] = await drawn(0, { playing: !calm }, first);
		render();
	}
	const [i, told] = position();
	run.value = i;
	await choose(told);
})().catch(failed);
