// The figures of an evaluation and its rejection window. All counts come from the page's data; nothing is estimated here.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const state = { model: 0, of: "confidence", curve: "binned", high: 0, low: -1 };
  const NS = "http://www.w3.org/2000/svg";

  function add(parent, name, attributes, text) {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }
  const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)} %`;
  const count = (x) => x.toLocaleString("en");
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

  // Axes from 0 to `top` with a grid; returns the scales.
  function frame(svg, box, labels, top = 1, topX = 1) {
    svg.replaceChildren();
    const x = (v) => box.left + ((box.right - box.left) * v) / topX;
    const y = (v) => box.bottom - ((box.bottom - box.top) * v) / top;
    for (let i = 0; i <= 5; i++) {
      const [vx, vy] = [(topX * i) / 5, (top * i) / 5];
      add(svg, "line", { class: "axis", x1: x(0), x2: x(topX), y1: y(vy), y2: y(vy) });
      add(svg, "text", { x: x(vx), y: box.bottom + 18, "text-anchor": "middle" }, labels.formatX(vx));
      add(svg, "text", { x: box.left - 6, y: y(vy) + 4, "text-anchor": "end" }, labels.formatY(vy));
    }
    add(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, labels.x);
    const middle = (box.top + box.bottom) / 2;
    add(svg, "text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, labels.y);
    return { x, y };
  }
  const tenths = (v) => v.toFixed(1);

  const captions = {
    binned: (x, y) => `Bars: ${y} in each bin; the coloured part is the gap to the mean ${x}, orange where the ${x} is too high and green where it is too low. Brackets: where a calibrated model falls.`,
    smooth: (x, y) => `The ${y}, smoothed over the ${x} at the bandwidth of the smooth ECE, where there are predictions. Band: where a calibrated model falls.`,
    corp: (x, y) => `The best non-decreasing fit of the ${y} to the ${x} (CORP): no bins to choose. Band: where a calibrated model falls.`,
  };
  function reliability() {
    const svg = $("reliability-figure"), model = data[state.model], curves = model.curves[state.of];
    const words = state.of === "positive" ? [`probability of ${model.positive}`, `share of ${model.positive}`] : ["confidence", "accuracy"];
    const { x, y } = frame(svg, { left: 52, right: 410, top: 10, bottom: 335 }, { x: words[0], y: words[1], formatX: tenths, formatY: tenths });
    if (state.curve === "binned") {
      for (const b of curves.binned) {
        const [left, width] = [x(b.lower) + 0.5, Math.max(1, x(b.upper) - x(b.lower) - 1)];
        add(svg, "rect", { class: "bar", x: left, width, y: y(b.accuracy), height: y(0) - y(b.accuracy) });
        const [above, below] = [Math.max(b.accuracy, b.confidence), Math.min(b.accuracy, b.confidence)];
        const kind = b.confidence > b.accuracy ? "bar over" : "bar under";
        const bar = add(svg, "rect", { class: kind, x: left, width, y: y(above), height: y(below) - y(above) });
        add(bar, "title", {}, `${words[0]} ${percent(b.confidence)}, ${words[1]} ${percent(b.accuracy)}, ${percent(b.share)} of the rows`);
        add(svg, "path", { class: "whisker", fill: "none", d: `M${x(b.confidence) - 4} ${y(b.low)}h8m-4 0V${y(b.high)}m-4 0h8` });
      }
    } else {
      const rows = curves[state.curve];
      if (rows.length) {
        const band = [...rows.map((r) => [x(r[0]), y(r[3])]), ...rows.map((r) => [x(r[0]), y(r[2])]).reverse()];
        add(svg, "path", { class: "band", d: path(band) + "Z" });
        add(svg, "path", { class: "line", d: path(rows.map((r) => [x(r[0]), y(r[1])])) });
      }
    }
    add(svg, "path", { class: "diagonal", d: path([[x(0), y(0)], [x(1), y(1)]]) });
    data.forEach((other, i) => {
      if (data.length < 2) return;
      const top = 24 + 17 * i, name = other.name.length > 32 ? `${other.name.slice(0, 31)}…` : other.name;
      const kind = i === state.model ? "line" : `line other-${i % 4}`;
      add(svg, "text", { x: 88, y: top + 4 }, name);
      if (i === state.model && state.curve === "binned") {
        add(svg, "rect", { class: "bar", x: 60, y: top - 5, width: 22, height: 10 });
        return;
      }
      add(svg, "path", { class: kind, d: `M60 ${top}h22` });
      if (i === state.model) return;
      const rows = other.curves[state.of][state.curve].map((r) => (state.curve === "binned" ? [x(r.confidence), y(r.accuracy)] : [x(r[0]), y(r[1])]));
      if (rows.length) add(svg, "path", { class: kind, d: path(rows) });
      if (state.curve === "binned") for (const [cx, cy] of rows) add(svg, "circle", { class: kind, cx, cy, r: 3 });
    });
    $("reliability-caption").textContent = captions[state.curve](...words) + (data.length > 1 ? " Lines of other colours: the other models." : "");
  }

  // What is kept by accepting score ≥ limits[high] or score ≤ limits[low]; low = -1 stands for no lower limit.
  function kept(r, high, low) {
    const below = low >= 0 && low < high;
    const right = r.rightAbove[high] + (below ? r.rightBelow[low] : 0);
    const wrong = r.wrongAbove[high] + (below ? r.wrongBelow[low] : 0);
    const errors = r.errorsAbove[high] + (below ? r.errorsBelow[low] : 0);
    const correct = r.correctAbove[high] + (below ? r.correctBelow[low] : 0);
    return { right, wrong, bound: errors + correct > 0 ? errors / (errors + correct) : 1 };
  }

  function risk() {
    const svg = $("risk-figure"), r = data[state.model].reject;
    const points = [], bounds = [];
    // With two classes the curve withholds a symmetric window around one half: it follows the confidence.
    for (let i = 0; i < r.limits.length; i++) {
      const low = r.binary ? lastAtMost(r.limits, 1 - r.limits[i]) : -1;
      if (r.binary && (r.limits[i] < 0.5 || low >= i)) continue;
      const k = kept(r, i, low);
      if (k.right + k.wrong === 0) continue;
      points.push([(k.right + k.wrong) / r.n, k.wrong / (k.right + k.wrong)]);
      bounds.push([(k.right + k.wrong) / r.n, k.bound]);
    }
    const ceiling = Math.max(0.01, ...points.filter((p) => p[0] > 0.1).map((p) => p[1]), ...bounds.filter((p) => p[0] > 0.3).map((p) => p[1]));
    const top = nice(1.1 * ceiling);
    const digits = top < 0.05 ? 2 : top < 0.5 ? 1 : 0;
    const { x, y } = frame(svg, { left: 66, right: 410, top: 10, bottom: 335 }, { x: "share of the predictions that is kept", y: "errors among them", formatX: tenths, formatY: (v) => percent(v, digits) }, top);
    const inside = (rows) => rows.filter((p) => p[1] <= top).map(([a, b]) => [x(a), y(b)]);
    if (points.length) {
      add(svg, "path", { class: "thin", d: path(inside(bounds)) });
      add(svg, "path", { class: "line", d: path(inside(points)) });
    }
    const now = kept(r, state.high, state.low);
    const total = now.right + now.wrong;
    if (total) add(svg, "circle", { class: "dot", r: 6, cx: x(total / r.n), cy: y(Math.min(top, now.wrong / total)) });
  }

  // The least round number, five steps of 1, 2, 2.5 or 5, that is not below v.
  function nice(v) {
    const power = 10 ** Math.floor(Math.log10(v / 5));
    const step = [1, 2, 2.5, 5, 10].find((s) => 5 * s * power >= v) * power;
    return Math.min(1, 5 * step);
  }
  function lastAtMost(values, v) {
    let [a, b] = [0, values.length];
    while (a < b) {
      const m = (a + b) >> 1;
      if (values[m] <= v) a = m + 1; else b = m;
    }
    return a - 1;
  }
  function nearest(values, v) {
    const i = Math.max(0, lastAtMost(values, v));
    return i + 1 < values.length && values[i + 1] - v < v - values[i] ? i + 1 : i;
  }

  const box = { left: 12, right: 848, top: 24, bottom: 195 };
  const place = (v) => box.left + (box.right - box.left) * v;
  function histogram() {
    const svg = $("histogram"), r = data[state.model].reject;
    svg.replaceChildren();
    // One unit is one pixel, so that the figure can be read and dragged on a phone too.
    const wide = Math.max(280, Math.round(svg.getBoundingClientRect().width) || 860);
    svg.setAttribute("viewBox", `0 0 ${wide} 240`);
    box.right = wide - 12;
    // Square roots of all counts, so that a few predictions beside very many can be seen. The wrong ones fill their share of a bar.
    const most = Math.sqrt(Math.max(1, ...r.histogram)), width = (box.right - box.left) / r.histogram.length;
    const height = (v) => ((box.bottom - box.top) * Math.sqrt(v)) / most;
    r.histogram.forEach((all, i) => {
      const left = box.left + i * width + 0.5;
      const bar = add(svg, "rect", { class: "bar", x: left, width: width - 1, y: box.bottom - height(all), height: height(all) });
      add(bar, "title", {}, `${count(all)} predictions, ${count(r.histogramWrong[i])} wrong`);
      const wrong = all ? (height(all) * r.histogramWrong[i]) / all : 0;
      add(svg, "rect", { class: "bar wrong", x: left, width: width - 1, y: box.bottom - wrong, height: wrong });
    });
    for (const share of [1, 1 / 4]) {
      const at = box.bottom - Math.sqrt(share) * (box.bottom - box.top);
      add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: at, y2: at });
      add(svg, "text", { class: "scale", x: box.left, y: at + 12 }, count(Math.round(share * most ** 2)));
    }
    for (let i = 0; i <= 10; i++) add(svg, "text", { x: place(i / 10), y: box.bottom + 18, "text-anchor": "middle" }, (i / 10).toFixed(1));
    add(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, r.score);
    const low = state.low >= 0 ? r.limits[state.low] : 0, high = r.limits[state.high];
    if (high > low) add(svg, "rect", { class: "hold", x: place(low), width: place(high) - place(low), y: box.top, height: box.bottom - box.top });
    handle(svg, "high", high, "≥");
    if (state.low >= 0) handle(svg, "low", low, "≤");
  }
  function handle(svg, which, value, sign) {
    const group = add(svg, "g", { class: "handle", "data-limit": which });
    const at = place(value);
    add(group, "rect", { class: "grip", x: at - 14, y: 0, width: 28, height: box.bottom });
    add(group, "line", { x1: at, x2: at, y1: box.top - 4, y2: box.bottom });
    add(group, "rect", { x: at - 6, y: box.top + 60, width: 12, height: 30, rx: 3 });
    // With two limits their numbers stand on the outer sides, so that they never overlap.
    const outer = which === "low" ? "end" : "start";
    const end = at > box.right - 70 ? "end" : at < box.left + 70 ? "start" : state.low >= 0 ? outer : "middle";
    add(group, "text", { x: at, y: 14, "text-anchor": end }, `${sign} ${shown(value)}`);
  }
  const shown = (v) => (v > 0.99 && v < 1 ? v.toFixed(4) : v.toFixed(3));

  function numbers() {
    const r = data[state.model].reject, k = kept(r, state.high, state.low);
    const total = k.right + k.wrong;
    $("coverage").textContent = percent(total / r.n);
    $("coverage-fine").textContent = `${count(total)} of ${count(r.n)}`;
    $("accuracy").textContent = total ? percent(k.right / total, 2) : "–";
    $("accuracy-fine").textContent = `${count(k.wrong)} wrong among them`;
    $("avoided").textContent = r.wrong ? percent((r.wrong - k.wrong) / r.wrong) : "–";
    $("avoided-fine").textContent = `${count(r.wrong - k.wrong)} of ${count(r.wrong)} errors`;
    $("bound").textContent = percent(k.bound, 2);
    $("bound-fine").textContent = `with ${percent(r.level, 0)} confidence`;
    $("bound-text").textContent = `The bound holds for all windows at once, so it stays valid for the one that you choose by looking. It needs rows that were used neither for training nor for calibration, and future data like them.`;
    $("high-value").textContent = shown(r.limits[state.high]);
    $("low-value").textContent = state.low >= 0 ? shown(r.limits[state.low]) : "none";
  }

  function sliders() {
    const r = data[state.model].reject;
    $("high").max = r.limits.length - 1;
    $("high").value = state.high;
    $("high").setAttribute("aria-valuetext", shown(r.limits[state.high]));
    $("low").max = r.limits.length - 1;
    $("low").min = -1;
    $("low").value = state.low;
    $("low").setAttribute("aria-valuetext", state.low >= 0 ? shown(r.limits[state.low]) : "none");
  }
  // The limits never cross: the one that moves pushes the other.
  function set(which, index) {
    const last = data[state.model].reject.limits.length - 1;
    if (which === "high") {
      state.high = Math.max(0, Math.min(last, index));
      if (state.low >= state.high) state.low = state.high - 1;
    } else {
      state.low = Math.max(-1, Math.min(last - 1, index));
      if (state.high <= state.low) state.high = state.low + 1;
    }
    update();
  }
  function update() {
    sliders();
    histogram();
    risk();
    numbers();
  }
  function start() {
    const r = data[state.model].reject;
    if (r.start) {
      // The rejection rule of the model.
      [state.low, state.high] = r.start;
    } else if (r.binary) {
      // Both limits at one half: nothing is withheld.
      state.low = lastAtMost(r.limits, 0.5);
      state.high = state.low + 1;
      if (state.high >= r.limits.length) [state.high, state.low] = [0, -1];
    } else {
      state.high = 0;
      state.low = -1;
    }
    update();
  }

  let dragged = null;
  const svg = $("histogram");
  function valueAt(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return (point.x - box.left) / (box.right - box.left);
  }
  svg.addEventListener("pointerdown", (event) => {
    const r = data[state.model].reject, v = valueAt(event);
    // A press anywhere takes the nearer limit.
    const toHigh = Math.abs(v - r.limits[state.high]), toLow = state.low >= 0 ? Math.abs(v - r.limits[state.low]) : Infinity;
    dragged = toLow < toHigh ? "low" : "high";
    svg.setPointerCapture(event.pointerId);
    set(dragged, nearest(r.limits, v));
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => {
    if (dragged) set(dragged, nearest(data[state.model].reject.limits, valueAt(event)));
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (dragged = null));
  $("high").addEventListener("input", (event) => set("high", Number(event.target.value)));
  $("low").addEventListener("input", (event) => set("low", Number(event.target.value)));
  for (const radio of document.querySelectorAll('.switch input'))
    radio.addEventListener("change", () => {
      state[radio.name] = radio.value;
      reliability();
    });
  addEventListener("resize", histogram);
  if ($("model")) $("model").addEventListener("change", (event) => {
    state.model = Number(event.target.value);
    reliability();
    start();
  });
  if ($("own-rule")) $("own-rule").addEventListener("click", start);
  reliability();
  start();
})();
