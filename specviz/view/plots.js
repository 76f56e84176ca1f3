// What pages with plots share: plotly's script, which lies packed in the page, and the trace that a click opens.

const unpacked = async (id) => {
	const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
	return new Response(stream).text();
};

// The page's policy allows no style attribute. plotly sets some, as text; the CSSOM says the same and may.
const allowStyles = () => {
	const set = Element.prototype.setAttribute;
	Element.prototype.setAttribute = function (name, value) {
		if (name === "style") this.style.cssText = value;
		else set.call(this, name, value);
	};
};

// Of the page's theme.
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const startPlotly = async () => {
	allowStyles();
	const script = document.createElement("script");
	script.textContent = await unpacked("plotly");
	document.head.append(script);
};

// plotly would offer to send the figure to its maker's servers.
const CONFIG = { displaylogo: false, responsive: true, showSendToCloud: false };

const figures = JSON.parse(document.getElementById("figures").textContent);
