// A chart is drawn at the width that it has, so that its text keeps its size on a phone.
function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);

class Chart {
  // ratio: height over width of the inner part; labels: names of ticks by number, for categories
  constructor(words, { ratio = 1, most = Infinity, draw }) {
    this.words = words;
    this.ratio = ratio;
    this.most = most;
    this.draw = draw;
    this.box = el("div", { class: "chart" });
    new ResizeObserver(() => { if (this.box.clientWidth !== this.drawn) this.again(); }).observe(this.box);
  }

  set(axes) { this.axes = axes; this.again(); }

  again() {
    const width = Math.min(this.box.clientWidth, this.most);
    this.drawn = this.box.clientWidth;
    if (!this.axes || width < 50) return;
    const { x, y, yhidden = false } = this.axes;
    const left = yhidden ? 14 : y.labels ? 84 : 56, right = 14, top = 10, bottom = 44;
    const inner = width - left - right, tall = Math.round(inner * this.ratio);
    this.sx = (v) => left + ((v - x.low) / (x.high - x.low)) * inner;
    this.sy = (v) => top + tall - ((v - y.low) / (y.high - y.low)) * tall;
    this.frame = { left, top, inner, tall };
    const root = svg("svg", { viewBox: `0 0 ${width} ${top + tall + bottom}`, role: "img", "aria-label": this.words });
    if (this.most < Infinity) root.style.maxWidth = `${this.most}px`;
    const id = `clip${Chart.made = (Chart.made || 0) + 1}`;
    const inside = svg("g", { "clip-path": `url(#${id})` });
    root.append(svg("clipPath", { id }, svg("rect", { x: left, y: top, width: inner, height: tall })), inside);
    root.append(svg("rect", { class: "axis", x: left, y: top, width: inner, height: tall }));
    this.marks(root, x, Math.max(2, Math.floor(inner / 50)), (t, name) =>
      svg("text", { x: this.sx(t), y: top + tall + 16, "text-anchor": "middle" }, cut(name, 10)));
    if (!yhidden) {
      this.marks(root, y, Math.max(2, Math.floor(tall / 40)), (t, name) =>
        svg("text", { x: left - 6, y: this.sy(t) + 4, "text-anchor": "end" }, cut(name, 11)));
      root.append(svg("text", { class: "name", x: 12, y: top + tall / 2, "text-anchor": "middle",
        transform: `rotate(-90 12 ${top + tall / 2})` }, cut(y.name, Math.floor(tall / 7))));
    }
    root.append(svg("text", { class: "name", x: left + inner / 2, y: top + tall + 36, "text-anchor": "middle" },
      cut(x.name, Math.floor(inner / 7))));
    this.inside = inside;
    this.root = root;
    this.draw(this, inside);
    this.box.replaceChildren(root);
  }

  marks(root, axis, most, make) {
    const every = axis.labels ? axis.labels.map((_, i) => i) : ticks(axis.low, axis.high, most);
    const some = axis.labels ? every.filter((i) => i % Math.ceil(every.length / (most + 1)) === 0) : every;
    for (const t of some) if (t >= axis.low && t <= axis.high) root.append(make(t, axis.labels ? axis.labels[t] : show(t)));
  }

  dots(kind, points, size = 3.5, opacity = 0.55) {
    let d = "";
    for (const [x, y] of points) if (x !== null && y !== null) d += `M${this.sx(x).toFixed(1)} ${this.sy(y).toFixed(1)}h0`;
    this.inside.append(svg("path", { class: `dots ${kind}`, d, "stroke-width": size, opacity }));
  }

  line(kind, points) {
    const d = points.filter(([, y]) => y !== null).map(([x, y], i) => `${i ? "L" : "M"}${this.sx(x).toFixed(1)} ${this.sy(y).toFixed(1)}`);
    this.inside.append(svg("path", { class: `line ${kind}`, d: d.join("") }));
  }

  bars(kind, edges, heights) {
    const zero = this.sy(0);
    heights.forEach((height, i) => {
      const left = this.sx(edges[i]), right = this.sx(edges[i + 1]), high = this.sy(height);
      this.inside.append(svg("rect", { class: `bars ${kind}`, x: left, y: high, width: Math.max(0.5, right - left - 0.5),
        height: Math.max(0, zero - high) }));
    });
  }

  // where in the units of the axes a pointer is
  place(event) {
    const box = this.root.getBoundingClientRect(), { left, top, inner, tall } = this.frame, { x, y } = this.axes;
    const scale = this.root.viewBox.baseVal.width / box.width;
    const u = Math.min(1, Math.max(0, ((event.clientX - box.left) * scale - left) / inner));
    const v = Math.min(1, Math.max(0, 1 - ((event.clientY - box.top) * scale - top) / tall));
    return [x.low + u * (x.high - x.low), y.low + v * (y.high - y.low)];
  }
}

// densities of two sets of values over the same bins
function histogram(values, low, high, bins) {
  const heights = new Array(bins).fill(0), width = (high - low) / bins;
  let all = 0;
  for (const value of values) {
    if (value === null) continue;
    all += 1;
    const i = Math.floor((value - low) / width);
    if (i >= 0 && i < bins) heights[i] += 1;
  }
  return heights.map((n) => n / (Math.max(1, all) * width));
}
const edgesOf = (low, high, bins) => Array.from({ length: bins + 1 }, (_, i) => low + ((high - low) * i) / bins);
