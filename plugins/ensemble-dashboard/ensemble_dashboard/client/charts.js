// Charts: drawn here as SVG.
'use strict';

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
  43200, 86400];
// Round numbers from `low` to `high`, about `count`. `steps`: distances that are round.
function ticks(low, high, count, steps = []) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = (raw > 0.5 && steps.find((each) => each >= raw))
    || [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) {
    found.push(+at.toPrecision(12));
  }
  return found;
}
const marks = [
  (x, y) => `M${x - 3},${y}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`,
  (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`,
  (x, y) => `M${x},${y - 4}l4,4l-4,4l-4,-4z`,
  (x, y) => `M${x - 3},${y - 3}l6,6m0,-6l-6,6`,
  (x, y) => `M${x - 4},${y}h8m-4,-4v8`,
  (x, y) => `M${x},${y + 4}l4,-7h-8z`,
];

const colourOf = (n) => SERIES[n % 7] === '#000000' ? 'currentColor' : SERIES[n % 7];

// Pictures are drawn for the width of the screen, so that their text is not made smaller.
const NARROW = matchMedia('(max-width: 480px)').matches, WIDTH = NARROW ? 340 : 720;
// The first and the last label of an axis stay inside the picture.
const anchor = (x) => x < 30 ? 'start' : x > WIDTH - 30 ? 'end' : 'middle';
const Label = ({ x, y, text, end }) => html`
  <text x=${x} y=${y} text-anchor=${end ? 'end' : anchor(x)}>${text}</text>`;

function Figure({ title, height, children, role = 'img' }) {
  const at = useRef(null);
  const save = () => {
    const copy = at.current.cloneNode(true);
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    copy.setAttribute('style', 'color:#222;background:#fff;font:12px sans-serif');
    for (const text of copy.querySelectorAll('text')) text.setAttribute('fill', '#222');
    const picture = new XMLSerializer().serializeToString(copy);
    download(`${title.replace(/\W+/g, '-')}.svg`, 'image/svg+xml', picture);
  };
  return html`<figure>
    <svg ref=${at} viewBox=${`0 0 ${WIDTH} ${height}`} role=${role} aria-label=${title}>
      ${children}</svg>
    <figcaption><span>${title}</span>
      <button type="button" onClick=${save}>Save SVG</button></figcaption></figure>`;
}

// The least and the greatest of some numbers, with some room.
function bounds(values, fromZero) {
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (fromZero) low = Math.min(0, low);
  if (low === high) {
    const some = Math.abs(low) / 10 || 0.5;
    low -= fromZero ? 0 : some;
    high += some;
  }
  const room = (high - low) * 0.04;
  return [fromZero ? low : low - room, high + room];
}

// The marks and the line of one series.
function Series({ one, n, px, py, lines }) {
  const colour = colourOf(n);
  const points = one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const path = points.map(
    ([x, y], at) => `${at ? 'L' : 'M'}${px(x).toFixed(1)},${py(y).toFixed(1)}`);
  // Many lines are told apart by their marks no more.
  const marked = !one.line || (points.length < 40 && lines <= 7) || points.length === 1;
  const mark = ([x, y, error], at) => html`<g key=${at}>
    ${error ? html`<line x1=${px(x)} x2=${px(x)} y1=${py(y - error)} y2=${py(y + error)} />` : ''}
    <path d=${marks[n % 7](px(x), py(y))} fill=${n % 7 < 4 || n % 7 === 6 ? colour : 'none'}>
      <title>${one.name}: ${number(x)}, ${number(y)}${error ? ` ± ${number(error)}` : ''}</title>
    </path></g>`;
  return html`<g stroke=${colour} fill="none">
    ${one.line && html`<path stroke-width="1.5" stroke-opacity=${lines <= 7 ? 1 : 0.5}
      d=${path.join('')}><title>${one.name}</title></path>`}
    ${marked && points.map(mark)}</g>`;
}

// series: [{name, points: [[x, y, error?]…], line: true or false}]
// `times`: x is a time in seconds; `counts`: y counts, from 0.
function Chart({ title, xName, yName, series, times, counts }) {
  const height = 300, left = 64, right = 12, top = 10, bottom = 44, columns = NARROW ? 2 : 4;
  const points = series.flatMap((each) => each.points)
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (!points.length) return html`<p class="quiet">${title}: no values.</p>`;
  const [x0, x1] = bounds(points.map(([x]) => x), false);
  const ys = points.flatMap(([, y, error]) => error ? [y - error, y + error] : [y]);
  const [y0, y1] = bounds(ys, counts);
  const px = (x) => left + (x - x0) / (x1 - x0) * (WIDTH - left - right);
  const py = (y) => height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
  const middle = (height - bottom) / 2;
  const legend = series.length <= 7 ? series : [];
  const xs = ticks(x0, x1, NARROW ? 4 : 7, times ? TIME_STEPS : []).filter((x) => !times || x >= 0);
  const labels = ticks(y0, y1, 5).filter((y) => !counts || y1 < 1 || Number.isInteger(y));
  const place = (n) => `translate(${(NARROW ? 8 : left) + (n % columns) * 160},
    ${height + 12 + 20 * Math.floor(n / columns)})`;
  return html`<${Figure} title=${title} height=${height + 20 * Math.ceil(legend.length / columns)}>
    ${labels.map((y) => html`<g key=${`y${y}`}>
      <line x1=${left} x2=${WIDTH - right} y1=${py(y)} y2=${py(y)} stroke="currentColor"
        stroke-opacity="0.15" />
      <${Label} x=${left - 6} y=${py(y) + 4} text=${number(y)} end=${true} /></g>`)}
    ${xs.map((x) => html`<${Label} key=${`x${x}`} x=${px(x)} y=${height - bottom + 16}
      text=${times ? duration(x) : number(x)} />`)}
    <text x=${(left + WIDTH - right) / 2} y=${height - 8} text-anchor="middle">${xName}</text>
    <text x=${14} y=${middle} text-anchor="middle" transform=${`rotate(-90 14 ${middle})`}>
      ${yName}</text>
    ${series.map((one, n) => html`<${Series} key=${one.name} one=${one} n=${n} px=${px} py=${py}
      lines=${series.length} />`)}
    ${legend.map((one, n) => html`<g key=${one.name} transform=${place(n)}>
      <path d=${marks[n % 7](0, 0)} fill=${colourOf(n)} stroke=${colourOf(n)} />
      <text x="10" y="4">${short(one.name, 20)}</text></g>`)}</${Figure}>`;
}
