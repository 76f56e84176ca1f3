// Saves a view as a picture: an SVG file without stylesheets or scripts, or a PNG rendered from it.
// Follows shared.js.

const UNDRAWN = ".unseen, .overlay, input";
const GEOMETRY = ["x", "y", "x1", "y1", "x2", "y2", "width", "height", "rx", "cx", "cy", "r", "d", "viewBox", "preserveAspectRatio", "transform", "dx", "dy"];
const PAINT = ["fill-opacity", "fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "paint-order", "vector-effect"];
const LETTERS = ["font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline"];

// Converts a computed colour to [rgb, opacity], which other programs read; browsers write mixed ones as color(srgb r g b / a).
function colour(value) {
	const [, mixed, plain] = /^(?:color\(srgb ([^)]*)\)|rgba?\(([^)]*)\))$/.exec(value) ?? [];
	const numbers = (mixed ?? plain)?.split(/[\s,/]+/).map(Number);
	if (!numbers) return [value, 1];
	const [r, g, b, a = 1] = numbers, to = (x) => Math.round(mixed ? 255 * x : x);
	return [`rgb(${to(r)},${to(g)},${to(b)})`, a];
}
// Clones a drawing's element and its visible descendants, with their styles written out.
function drawn(node) {
	const style = getComputedStyle(node);
	if (style.display === "none" || style.visibility === "hidden" || ["title", "clipPath"].includes(node.tagName)) return "";
	const attributes = {};
	for (const name of GEOMETRY) if (node.hasAttribute(name)) attributes[name] = node.getAttribute(name);
	for (const name of node.tagName === "text" ? [...PAINT, ...LETTERS] : PAINT) {
		const [value, opacity] = colour(style.getPropertyValue(name));
		attributes[name] = value;
		if (opacity < 1) attributes[`${name}-opacity`] = opacity * (name === "fill" ? +style.fillOpacity : 1);
	}
	const content = node.tagName === "text" ? [node.textContent] : [...node.children].map(drawn);
	return s(node.tagName, attributes, ...content);
}
// The lines of a text node at their positions on the page.
function written(node, ruler) {
	const style = getComputedStyle(node.parentNode), range = document.createRange(), lines = [];
	if (style.visibility === "hidden") return [];
	for (const { index, 0: word } of node.data.matchAll(/\S+|[^\S\n]+/g)) {
		range.setStart(node, index);
		range.setEnd(node, index + word.length);
		for (const box of range.getClientRects()) {
			if (!box.width) continue;
			const last = lines.at(-1);
			if (last && Math.abs(last.y - box.y) < 2 && box.x >= last.right - 1) { last.text += word; last.right = box.right; break; }
			lines.push({ text: word, x: box.x, y: box.y, right: box.right, tall: box.height });
			break;
		}
	}
	ruler.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
	const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = ruler.measureText("x"), [fill] = colour(style.color);
	const font = Object.fromEntries(LETTERS.slice(0, 4).map((name) => [name, style.getPropertyValue(name)]));
	return lines.filter((one) => one.text.trim()).map((one) => s("text", {
		x: one.x.toFixed(1), y: (one.y + (one.tall * up) / (up + down)).toFixed(1), fill, ...font, "xml:space": "preserve", textLength: (one.right - one.x).toFixed(1), lengthAdjust: "spacingAndGlyphs",
	}, one.text));
}
// A box's background and borders.
function boxed(style, { x, y, width, height }) {
	const clear = style.backgroundColor === "rgba(0, 0, 0, 0)", [first] = /rgba?\([^)]*\)|color\(srgb[^)]*\)/.exec(style.backgroundImage) ?? [""];
	const found = [], [ground, shade] = colour(clear ? first : style.backgroundColor); // for a gradient its first colour
	const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2);
	if (ground && shade) found.push(s("rect", { x, y, width, height, rx, fill: ground, "fill-opacity": shade }));
	const sides = ["Top", "Right", "Bottom", "Left"].map((side) => {
		const [stroke, opacity] = colour(style[`border${side}Color`]), line = style[`border${side}Style`], wide = parseFloat(style[`border${side}Width`]);
		return { stroke, wide, "stroke-opacity": opacity, "stroke-width": wide, "stroke-dasharray": { dashed: `${3 * wide} ${2 * wide}`, dotted: `${wide} ${wide}` }[line] ?? "none" };
	});
	const same = sides.every((side) => side.wide && side.stroke === sides[0].stroke && side.wide === sides[0].wide);
	const paint = ({ wide, ...rest }) => rest, half = sides[0].wide / 2;
	if (same) found.push(s("rect", { x: x + half, y: y + half, width: Math.max(0, width - 2 * half), height: Math.max(0, height - 2 * half), rx, fill: "none", ...paint(sides[0]) }));
	else {
		const ends = [[0, 0, 1, 0], [1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]];
		sides.forEach((side, k) => {
			if (!side.wide || style[`border${["Top", "Right", "Bottom", "Left"][k]}Style`] === "none") return;
			const [a, b, c, d] = ends[k], inset = side.wide / 2, within = (at, from, size) => from + (at ? size - inset : inset);
			found.push(s("path", { d: `M${within(a, x, width)} ${within(b, y, height)}L${within(c, x, width)} ${within(d, y, height)}`, fill: "none", ...paint(side) }));
		});
	}
	return found;
}
function pictured(node, ruler) {
	if (node.nodeType === Node.TEXT_NODE) return node.data.trim() ? written(node, ruler) : [];
	if (node.nodeType !== Node.ELEMENT_NODE || node.matches(UNDRAWN) || !node.checkVisibility({ visibilityProperty: true })) return [];
	const style = getComputedStyle(node), box = node.getBoundingClientRect();
	const { x, y, width, height } = box;
	if (node.tagName === "svg") { // keeps its size and position on the page; overflow is clipped
		const { viewBox } = node, view = viewBox.baseVal?.width ? node.getAttribute("viewBox") : `0 0 ${width} ${height}`;
		return [s("svg", { x, y, width, height, viewBox: view, preserveAspectRatio: node.getAttribute("preserveAspectRatio") ?? "xMidYMid", opacity: style.opacity }, ...[...node.children].map(drawn))];
	}
	const inner = node.tagName === "SELECT" ? [] : [...node.childNodes].flatMap((child) => pictured(child, ruler));
	if (node.tagName === "SELECT") inner.push(...chosen(node, style, box));
	const grounds = style.display === "inline" ? [...node.getClientRects()] : [box]; // one box per line for wrapped text
	const parts = [...grounds.flatMap((one) => boxed(style, one)), ...(style.overflowX === "visible" && style.overflowY === "visible" ? inner : [s("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` }, ...inner)])];
	return +style.opacity < 1 ? [s("g", { opacity: style.opacity }, ...parts)] : parts;
}
// The selected option of a list.
function chosen(node, style, { x, y, height }) {
	return [s("text", { x: x + 8, y: y + height / 2, "dominant-baseline": "central", fill: colour(style.color)[0], "font-size": style.fontSize, "font-family": style.fontFamily }, node.selectedOptions[0]?.textContent ?? "")];
}

// Renders a view as SVG text: [text, width, height].
function svgOf(root) {
	root.classList.add("saved"); // hides elements that only serve a reader at the page
	const { x, y, width, height } = root.getBoundingClientRect(), ruler = document.createElement("canvas").getContext("2d");
	const picture = s("svg", { width: Math.ceil(width), height: Math.ceil(height), viewBox: `${x} ${y} ${width} ${height}` }, ...pictured(root, ruler));
	root.classList.remove("saved");
	return [new XMLSerializer().serializeToString(picture), Math.ceil(width), Math.ceil(height)];
}
function saveSvg(root, name) { download(new Blob([svgOf(root)[0]], { type: "image/svg+xml" }), `${name}.svg`); }
async function savePng(root, name) {
	const [text, width, height] = svgOf(root), picture = new Image(), sheet = document.createElement("canvas");
	picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
	await picture.decode();
	[sheet.width, sheet.height] = [2 * width, 2 * height];
	sheet.getContext("2d").drawImage(picture, 0, 0, sheet.width, sheet.height);
	download(await new Promise((done) => sheet.toBlob(done)), `${name}.png`);
}
