// Project speedups to other costs: scale what drafts add to a pass and what drafting costs, here or on another device.
for (const place of document.querySelectorAll(".projection")) {
	const device = place.querySelector("select");
	const sliders = [...place.querySelectorAll("input")];
	const project = () => {
		const scale = sliders.map((slider) => Number(slider.value));
		sliders.forEach((slider, i) => { slider.nextElementSibling.textContent = scale[i].toFixed(2); });
		for (const shown of place.querySelectorAll("[data-cost]")) {
			const { gain, passes, here, rest, plain, elsewhere } = JSON.parse(shown.dataset.cost);
			const costs = device.value ? elsewhere[device.value] : here;
			if (!costs) { shown.textContent = "–"; continue; }
			const loop = device.value ? [0, 0] : [rest, plain];
			const cycle = passes + (costs[0] - passes) * scale[0] + costs[1] * scale[1] + loop[0];
			shown.textContent = ((gain * (1 + loop[1])) / cycle).toFixed(2);
		}
	};
	for (const control of [device, ...sliders]) control.addEventListener("input", project);
	place.hidden = false;
	project();
}
const themed = (layout) => {
	const line = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
	const axes = ["xaxis", "yaxis"].map((name) => [name, { automargin: true, ...layout[name], ...line }]);
	const shapes = layout.shapes.map((shape) => ({ ...shape, line: { color: colour("--soft"), dash: "dot", width: 1.5 } }));
	return {
		...layout, ...Object.fromEntries(axes), shapes, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
		font: { color: colour("--fg"), family: "system-ui, sans-serif", size: 12 },
	};
};
const tinted = (trace) => {
	const curve = /^curve(\d+)$/.exec(trace.meta);
	const hues = ["--blue", "--bad", "--good", "--soft"];
	const hue = colour(curve ? hues[curve[1] % hues.length] : trace.meta === "here" ? "--blue" : "--soft");
	return { ...trace, marker: { ...trace.marker, color: hue, line: { color: hue, width: 1.5 } },
		line: { ...trace.line, color: hue } };
};
const drawn = new Set();
const draw = (place) => {
	const { data, layout } = figures[Number(place.dataset.figure)];
	Plotly.react(place, data.map(tinted), themed(layout), CONFIG);
	if (!drawn.has(place)) openTraces(place);
	drawn.add(place);
};
const places = document.querySelectorAll("[data-figure]");
// Reserve room for each plot before it is drawn, so that nothing moves under a reader's finger. The height stays: plotly fills it
// when the window is resized.
for (const place of places) place.style.height = `calc(${figures[Number(place.dataset.figure)].layout.height}px + .6em + 2px)`;
if (figures.length) {
	await startPlotly();
	const seen = new IntersectionObserver((entries) => {
		for (const { isIntersecting, target } of entries) if (isIntersecting && !drawn.has(target)) draw(target);
	}, { rootMargin: "600px" });
	for (const place of places) seen.observe(place);
	dark.addEventListener("change", () => drawn.forEach(draw));
	addEventListener("beforeprint", () => places.forEach(draw));
}
