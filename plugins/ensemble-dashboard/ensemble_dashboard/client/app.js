// The page of a run, in a report (data in the page) and in a dashboard (data fetched).
'use strict';
const { html, render, useState, useEffect, useMemo, useRef, useCallback } = htmPreact;

// -- words and numbers ---------------------------------------------------------------------------

// Okabe and Ito's colours, which people with any colour vision can tell apart. A state also has a
// shape and a word.
const STATES = {
  success: ['#009E73', '●', 'done'], running: ['#0072B2', '▶', 'running'],
  waiting: ['#56B4E9', '○', 'waiting'], held: ['#CC79A7', '◫', 'held'],
  failed: ['#D55E00', '✕', 'failed'], cancelled: ['#8a8a8a', '⊘', 'cancelled'],
  lost: ['#E69F00', '?', 'lost'], active: ['#0072B2', '▶', 'unfinished'],
};
const SERIES = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000'];
const TIMES = new Set(['submitted', 'started', 'finished']);

function number(value) {
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return value.toLocaleString('en');
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(+value.toPrecision(5));
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds <= 0) return '0 s';
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[first];
  const whole = Math.floor(seconds / size);
  if (first === 3) return `${whole} s`;
  const rest = Math.floor((seconds - whole * size) / parts[first + 1][0]);
  return rest ? `${whole} ${unit} ${rest} ${parts[first + 1][1]}` : `${whole} ${unit}`;
}
const time = (seconds) => seconds === null || seconds === undefined ? ''
  : new Date(seconds * 1000).toISOString().replace('T', ' ').slice(0, 19);
const cell = (name, value) => value === null || value === undefined ? ''
  : TIMES.has(name) ? time(value) : name === 'duration' ? duration(value) : number(value);
const percent = (share) => `${Math.round(100 * share)} %`;
const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
// Jobs write codes for colours and other orders to a terminal; none of these is text.
const clean = (text) => text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]/g, '');
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? '' : 's'}`;
const shown = (value) => typeof value === 'string' ? value : JSON.stringify(value);

// -- where the data come from --------------------------------------------------------------------

const embedded = document.getElementById('data');

// `get` returns `data` of one kind; `again`, that newer data will be there in a moment.
class Report {
  constructor(data) { this.data = data; this.live = false; this.made = data.made; this.left = data.left_out; }
  async runs() { return [this.data.overview.tag]; }
  async get(run, name, query) { return { data: this.document(name, query) }; }
  document(name, query = {}) {
    if (name === 'jobs') return pageOf(this.data.jobs, query);
    if (name === 'job') return this.job(`${query.group}.${query.index}`);
    if (name === 'log') return (this.data.logs[query.job] || {})[query.stream]
      || { text: '', problem: 'this report was made without logs: ensemble report --with-logs' };
    return this.data[name];
  }
  job(id) {
    const { names, rows } = this.data.jobs;
    const at = [names.indexOf('group'), names.indexOf('index')];
    if (this.data.details[id]) return this.data.details[id];
    const row = rows.find((each) => `${each[at[0]]}.${each[at[1]]}` === id);
    if (!row) throw new Error(`this report has no job ${id}`);
    const rules = this.data.firings.filter((each) => each.job && (each.job === id || each.job.startsWith(`${id}-`)));
    return { id, row: Object.fromEntries(names.map((name, n) => [name, row[n]])), attempts: [], events: [],
      values: [], rules: rules.map((each) => ({ ...each, decision: each.decisions.join(', ') })) };
  }
}

class Server {
  constructor() {
    this.live = true;
    const given = /token=([\w-]+)/.exec(location.hash);
    if (given) {
      sessionStorage.setItem('token', given[1]);
      history.replaceState(null, '', location.pathname + location.hash.replace(/[?&]?token=[\w-]+/, '').replace(/^#$/, ''));
    }
  }
  async fetch(path) {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem('token') || ''}` };
    let answer;
    try { answer = await fetch(path, { headers, cache: 'no-store' }); } catch (error) {
      throw new Error('The dashboard does not answer: was it stopped? "ensemble dashboard" starts it again.');
    }
    if (answer.status === 401) throw new Error('The token is missing or wrong. Open the address that "ensemble dashboard" printed.');
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.error || `the dashboard answered ${answer.status}`);
    if (answer.status !== 202) return { data, again: answer.headers.has('Retry-After') };
    // A large run is still being read.
    await new Promise((done) => setTimeout(done, 300));
    return this.fetch(path);
  }
  async runs() { return (await this.fetch('api/runs')).data; }
  get(run, name, query = {}) {
    const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '' && value !== undefined));
    return this.fetch(`api/runs/${encodeURIComponent(run)}/${name}?${given}`);
  }
}

// A page of a table that is here as a whole: filtered, sorted, cut as the server does it.
function pageOf({ names, rows }, { where = '{}', text = '', sort = '', descending = '', offset = 0, limit = 100 }) {
  let found = rows;
  for (const [name, value] of Object.entries(JSON.parse(where))) {
    const at = names.indexOf(name);
    found = found.filter((row) => String(row[at]) === String(value));
  }
  if (text) {
    const wanted = text.toLowerCase();
    const own = [names.indexOf('group'), names.indexOf('index')];
    found = found.filter((row) => row.some((value) => value !== null && String(value).toLowerCase().includes(wanted))
      || `${row[own[0]]}.${row[own[1]]}`.toLowerCase().includes(wanted));
  }
  if (sort) found = sorted(found, names.indexOf(sort), descending === '1');
  return { names, rows: found.slice(+offset, +offset + +limit), total: found.length, offset: +offset };
}
function sorted(rows, at, descending) {
  const sign = descending ? -1 : 1;
  const order = (a, b) => typeof a === 'number' && typeof b === 'number' ? a - b
    : typeof a === 'number' ? -1 : typeof b === 'number' ? 1 : String(a).localeCompare(String(b));
  const missing = (row) => row[at] === null || row[at] === undefined;
  return [...rows.filter((row) => !missing(row)).sort((a, b) => sign * order(a[at], b[at])), ...rows.filter(missing)];
}

const source = embedded ? new Report(JSON.parse(embedded.textContent)) : new Server();

// -- the address: #/RUN/VIEW?NAME=VALUE, so that each view can be linked to -------------------------

function readAddress() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [run = '', view = ''] = path.split('/').map(decodeURIComponent);
  return { run, view: view || 'overview', query: Object.fromEntries(new URLSearchParams(query)) };
}
function address(run, view, query = {}) {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '' && value !== undefined && value !== null)).toString();
  return `#/${encodeURIComponent(run)}/${view}${given ? `?${given}` : ''}`;
}
function useAddress() {
  const [here, setHere] = useState(readAddress());
  useEffect(() => {
    const changed = () => setHere(readAddress());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return here;
}
const go = (here, query) => history.replaceState(null, '', address(here.run, here.view, { ...here.query, ...query }))
  || dispatchEvent(new HashChangeEvent('hashchange'));

// A page in the background asks for nothing.
const whenShown = (ask) => document.hidden ? document.addEventListener('visibilitychange', () => whenShown(ask), { once: true }) : ask();

// Data of one kind; of a run that is watched again when events were added, `seq` says when.
function useData(run, name, query, seq) {
  const [state, setState] = useState({});
  const key = JSON.stringify([run, name, query]);
  useEffect(() => {
    let wanted = true, timer;
    const ask = () => wanted && source.get(run, name, query).then(({ data, again }) => {
      if (!wanted) return;
      setState({ key, data });
      if (again) timer = setTimeout(() => whenShown(ask), 1000);
    }, (error) => wanted && setState({ key, error: error.message }));
    if (run) ask();
    return () => { wanted = false; clearTimeout(timer); };
  }, [key, seq]);
  return state.key === key ? state : { waiting: true, data: undefined };
}
function Loaded({ of, children }) {
  if (of.error) return html`<p class="problem" role="alert">${of.error}</p>`;
  if (!of.data) return html`<p class="quiet" role="status">reading …</p>`;
  return children(of.data);
}

// -- parts -----------------------------------------------------------------------------------------

function State({ name, count }) {
  const [colour, shape, word] = STATES[name] || ['#8a8a8a', '◇', name];
  return html`<span class="state"><span style=${{ color: colour }} aria-hidden="true">${shape}</span>${' '}${count === undefined ? '' : `${number(count)} `}${word}</span>`;
}

function Bar({ parts, total }) {
  const there = parts.filter(([, count]) => count > 0);
  const text = there.map(([name, count]) => `${count} ${STATES[name][2]}`).join(', ') || 'no jobs yet';
  return html`<div>
    <div class="bar" role="img" aria-label=${text}>${there.map(([name, count]) => html`<span key=${name}
      class=${`fill ${name}`} title=${`${count} ${STATES[name][2]}`} style=${{ width: `${100 * count / Math.max(total, 1)}%`, background: STATES[name][0] }}></span>`)}</div>
    <div class="legend">${there.map(([name, count]) => html`<${State} key=${name} name=${name} count=${count} />`)}</div></div>`;
}

function download(name, kind, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function copyText(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
  return Promise.resolve();
}
function Copy({ label, text }) {
  const [done, setDone] = useState(false);
  const copy = () => Promise.resolve(typeof text === 'function' ? text() : text).then(copyText)
    .then(() => { setDone(true); setTimeout(() => setDone(false), 2000); });
  return html`<button type="button" onClick=${copy}>${done ? 'copied' : label}</button>`;
}
const csv = (names, rows) => [names, ...rows].map((row) => row.map((value) => {
  const text = value === null || value === undefined ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(',')).join('\n');
const markdown = (names, rows) => [names, names.map(() => '---'), ...rows]
  .map((row) => `| ${row.map((value) => (value ?? '').toString().replaceAll('|', '\\|')).join(' | ')} |`).join('\n');

// A table whose rows are all here. `id` keeps its order and filter in the address.
// `formats` has functions that write the numbers of a column.
function Table({ id, here, names, rows, links = {}, formats = {}, caption }) {
  const sort = here.query[`${id}-sort`] || '', descending = here.query[`${id}-desc`] || '';
  const text = here.query[`${id}-text`] || '', page = +(here.query[`${id}-page`] || 0);
  const set = (query) => go(here, Object.fromEntries(Object.entries(query).map(([name, value]) => [`${id}-${name}`, value])));
  const found = useMemo(() => pageOf({ names, rows }, { text, sort, descending, limit: rows.length }).rows, [names, rows, text, sort, descending]);
  return html`<${Grid} caption=${caption} names=${names} rows=${found.slice(page * 100, page * 100 + 100)} total=${found.length} offset=${page * 100}
    sort=${sort} descending=${descending} text=${text} links=${links} formats=${formats} every=${() => found} set=${set} />`;
}

function Grid({ caption, names, rows, total, offset, sort, descending, text, links, formats = {}, every, set }) {
  const numeric = new Set(names.filter((name, at) => !TIMES.has(name) && rows.some((row) => typeof row[at] === 'number')));
  const order = (name) => set({ sort: name, desc: sort === name && !descending ? '1' : '', page: '' });
  return html`<div class="tools">
      <label>Filter <input type="search" value=${text} onChange=${(event) => set({ text: event.target.value, page: '' })} /></label>
      <${Copy} label="Copy CSV" text=${async () => csv(names, await every())} />
      <${Copy} label="Copy Markdown" text=${async () => markdown(names, await every())} />
      <span class="quiet" role="status">${plural(total, 'row')}</span></div>
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}><table><caption class="hidden">${caption}</caption>
      <thead><tr>${names.map((name) => html`<th key=${name} scope="col" class=${numeric.has(name) ? 'number' : ''} aria-sort=${sort === name ? (descending ? 'descending' : 'ascending') : 'none'}>
        <button type="button" onClick=${() => order(name)}>${name}${sort === name ? (descending ? ' ↓' : ' ↑') : ''}</button></th>`)}</tr></thead>
      <tbody>${rows.map((row, n) => html`<tr key=${offset + n}>${row.map((value, at) => {
        const name = names[at];
        const content = name === 'outcome' ? html`<${State} name=${value} />` : value !== null && typeof value === 'object' ? JSON.stringify(value)
          : formats[name] && typeof value === 'number' ? formats[name](value) : cell(name, value);
        return html`<td key=${name} class=${numeric.has(name) ? 'number' : ''} title=${typeof content === 'string' && content.length > 18 ? content : undefined}>${links[name]
          ? html`<a href=${links[name](row)}>${content}</a>` : content}</td>`;
      })}</tr>`)}</tbody></table></div>
    ${total > 100 && html`<nav class="tools" aria-label="Pages">
      <button type="button" disabled=${offset === 0} onClick=${() => set({ page: offset / 100 - 1 || '' })}>Previous</button>
      <span>${number(offset + 1)}–${number(Math.min(total, offset + 100))} of ${number(total)}</span>
      <button type="button" disabled=${offset + 100 >= total} onClick=${() => set({ page: offset / 100 + 1 })}>Next</button></nav>`}`;
}

// -- charts: SVG, drawn here ---------------------------------------------------------------------

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
function ticks(low, high, count, steps = []) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const round = [1, 2, 5, 10].map((each) => each * power);
  const step = (raw > 1 && steps.find((each) => each >= raw)) || round.find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}
const marks = [
  (x, y) => `M${x - 3},${y}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`, (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`, (x, y) => `M${x},${y - 4}l4,4l-4,4l-4,-4z`,
  (x, y) => `M${x - 3},${y - 3}l6,6m0,-6l-6,6`, (x, y) => `M${x - 4},${y}h8m-4,-4v8`, (x, y) => `M${x},${y + 4}l4,-7h-8z`,
];

// Pictures are drawn for the width of the screen, so that their text is not made smaller.
const NARROW = matchMedia('(max-width: 480px)').matches, WIDTH = NARROW ? 340 : 720;
// The first and the last label of an axis stay inside the picture.
const anchor = (x) => x < 30 ? 'start' : x > WIDTH - 30 ? 'end' : 'middle';

function Figure({ title, height, children, role = 'img' }) {
  const at = useRef(null);
  const save = () => {
    const copy = at.current.cloneNode(true);
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    copy.setAttribute('style', 'color:#222;background:#fff;font:12px sans-serif');
    for (const text of copy.querySelectorAll('text')) text.setAttribute('fill', '#222');
    download(`${title.replace(/\W+/g, '-')}.svg`, 'image/svg+xml', new XMLSerializer().serializeToString(copy));
  };
  return html`<figure><svg ref=${at} viewBox=${`0 0 ${WIDTH} ${height}`} role=${role} aria-label=${title}>${children}</svg>
    <figcaption><span>${title}</span> <button type="button" onClick=${save}>Save SVG</button></figcaption></figure>`;
}

// series: [{name, points: [[x, y, error?]…], line: true or false}]
function Chart({ title, xName, yName, series, stacked }) {
  const width = WIDTH, height = 300, left = 64, columns = NARROW ? 2 : 4, right = 12, top = 10, bottom = 44;
  const points = series.flatMap((each) => each.points).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (!points.length) return html`<p class="quiet">${title}: no values.</p>`;
  const xs = points.map(([x]) => x), ys = points.flatMap(([, y, error]) => error ? [y - error, y + error] : [y]);
  const bounds = (values, zero) => {
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    if (zero) low = Math.min(0, low);
    if (low === high) { low -= 0.5; high += 0.5; }
    const room = (high - low) * 0.04;
    return [zero ? low : low - room, high + room];
  };
  const [x0, x1] = bounds(xs, false), [y0, y1] = bounds(ys, stacked);
  const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
  const py = (y) => height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
  const some = series.length <= 7;
  return html`<${Figure} title=${title} height=${height + (some ? 20 * Math.ceil(series.length / columns) : 0)}>
    ${ticks(y0, y1, 5).map((y) => html`<g key=${`y${y}`}><line x1=${left} x2=${width - right} y1=${py(y)} y2=${py(y)} stroke="currentColor" stroke-opacity="0.15" />
      <text x=${left - 6} y=${py(y) + 4} text-anchor="end">${number(y)}</text></g>`)}
    ${ticks(x0, x1, NARROW ? 4 : 7).map((x) => html`<text key=${`x${x}`} x=${px(x)} y=${height - bottom + 16} text-anchor=${anchor(px(x))}>${number(x)}</text>`)}
    <text x=${(left + width - right) / 2} y=${height - 8} text-anchor="middle">${xName}</text>
    <text x=${14} y=${(height - bottom) / 2} text-anchor="middle" transform=${`rotate(-90 14 ${(height - bottom) / 2})`}>${yName}</text>
    ${series.map((one, n) => {
      const colour = SERIES[n % 7] === '#000000' ? 'currentColor' : SERIES[n % 7];
      const own = one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
      return html`<g key=${one.name} stroke=${colour} fill="none">
        ${one.line && html`<path stroke-width="1.5" stroke-opacity=${some ? 1 : 0.5} d=${own.map(([x, y], at) => `${at ? 'L' : 'M'}${px(x).toFixed(1)},${py(y).toFixed(1)}`).join('')} />`}
        ${(!one.line || own.length < 40) && own.map(([x, y, error], at) => html`<g key=${at}>
          ${error ? html`<line x1=${px(x)} x2=${px(x)} y1=${py(y - error)} y2=${py(y + error)} />` : ''}
          <path d=${marks[n % 7](px(x), py(y))} fill=${n % 7 < 4 || n % 7 === 6 ? colour : 'none'}><title>${`${one.name}: ${number(x)}, ${number(y)}${error ? ` ± ${number(error)}` : ''}`}</title></path></g>`)}
        ${some && html`<g transform=${`translate(${(NARROW ? 8 : left) + (n % columns) * 160},${height + 12 + 20 * Math.floor(n / columns)})`}><path d=${marks[n % 7](0, 0)} fill=${colour} /><text x="10" y="4" stroke="none">${short(one.name, 20)}</text></g>`}</g>`;
    })}</${Figure}>`;
}

// -- views ------------------------------------------------------------------------------------------

function Header({ run, overview, now }) {
  const { state, controller, groups, newest, reason, exit_code: code, problem } = overview;
  const sum = (name) => groups.reduce((all, group) => all + group[name], 0);
  const quiet = now - (newest || now);
  const who = controller.host ? `controlled by process ${controller.pid} on ${controller.host}` : '';
  return html`<header class="run"><h1>${overview.tag}</h1>
    <p><strong class=${`run-state ${state}`}>${state}</strong>${' '}
      ${state === 'running' ? html`${who}; ${quiet > 60 ? html`<strong>quiet for ${duration(quiet)}</strong>` : `last event ${duration(quiet)} ago`}: ${number(sum('running'))} running, ${number(sum('waiting'))} waiting`
        : state === 'interrupted' ? 'the controller was killed or lost; jobs in the queue were left as they were' : html`${reason}${code === null || code === undefined ? '' : `, exit code ${code}`}`}</p>
    <p class="quiet">${overview.executor && `on ${overview.executor}, `}began ${time(overview.began)} UTC${overview.newest ? `, ${duration(overview.newest - overview.began)} to the last event` : ''}, ${plural(overview.events, 'event')}</p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${overview.warnings.map((text) => html`<p class="problem" key=${text}>${text}</p>`)}</header>`;
}

const RESUMED = ['stopped', 'limited', 'interrupted'];
const Command = ({ text }) => html`<p><code>${text}</code> <${Copy} label="Copy" text=${text} /></p>`;

function Overview({ run, overview, here }) {
  const { progress, groups, rules } = overview;
  const [failed, lost] = ['failed', 'lost'].map((name) => groups.reduce((all, group) => all + group[name], 0));
  const never = rules.filter((rule) => !rule.fired);
  return html`<section><h2>Progress</h2>
    ${progress && html`<p>${number(progress.done)} of ${number(progress.planned)} jobs are over${progress.open ? ', and rules may add more' : ''}.${' '}
      ${progress.to_go !== null && progress.to_go !== undefined && overview.state === 'running' && html`About ${duration(progress.to_go)} left.`}
      ${progress.held > 0 && html`${plural(progress.held, 'job')} held${progress.holding.length ? ` by the limit ${progress.holding.join(', ')}` : ''}.`}</p>`}
    ${groups.map((group) => html`<div class="group" key=${group.name}><h3><a href=${address(run, 'jobs', { where: JSON.stringify({ group: group.name }) })}>${group.name}</a> <span class="quiet">${plural(group.submitted - group.repeated, 'job')}${group.repeated ? ` in ${number(group.submitted)} attempts` : ''}${group.mean_duration !== null ? `, mean ${duration(group.mean_duration)}` : ''}</span></h3>
      <${Bar} total=${group.submitted} parts=${['success', 'running', 'waiting', 'failed', 'cancelled'].map((name) => [name, group[name]])} /></div>`)}
    ${!groups.length && html`<p class="quiet">Nothing is known of this run's groups.</p>`}
    <h2>Attention</h2><ul>
      ${failed > 0 && html`<li><a href=${address(run, 'failures')}>${plural(lost, 'job')} failed</a>${failed > lost ? `, of ${plural(failed, 'failed attempt')}` : ''}</li>`}
      ${never.length > 0 && html`<li><a href=${address(run, 'rules')}>${plural(never.length, 'rule')} never fired</a></li>`}
      ${!failed && !never.length && html`<li>Nothing: no job failed, and every rule fired.</li>`}</ul>
    ${overview.state === 'running' && html`<h2>Commands</h2><p>This page only shows. To act, copy a command:</p>
      ${[`ensemble stop ${run}`, `ensemble cancel ${run} GROUP`, `ensemble why ${run} RULE`].map((text) => html`<${Command} key=${text} text=${text} />`)}`}
    ${RESUMED.includes(overview.state) && html`<h2>Commands</h2><p>This run can go on:</p><${Command} text=${`ensemble resume ${run}`} />`}</section>`;
}

// The filter for jobs that failed in one way.
function ofKind({ group, outcome, cause, exit_code }, more) {
  const known = Object.entries({ group, outcome, cause, exit_code }).filter(([, value]) => value !== null && value !== undefined);
  return JSON.stringify({ ...Object.fromEntries(known), ...more });
}

function Failures({ run, here, seq }) {
  const found = useData(run, 'failures', {}, seq);
  return html`<section><h2>Failures</h2><${Loaded} of=${found}>${(kinds) => !kinds.length ? html`<p>No job failed.</p>`
    : kinds.map((kind, n) => html`<article class="card" key=${n}>
      <h3><${State} name=${kind.outcome} />: ${number(kind.count)} of ${plural(kind.of, 'job')} of ${kind.group}</h3>
      <p>Cause <strong>${kind.cause || 'unknown'}</strong>${kind.exit_code === null ? '' : html`, exit code <strong>${kind.exit_code}</strong>`}.${' '}
        <a href=${address(run, 'jobs', { where: ofKind(kind) })}>Show these jobs</a></p>
      ${kind.parameters.length > 0 && html`<p>More often than others at:</p><ul>${kind.parameters.map((each) => html`<li key=${each.name + shown(each.value)}>
        <a href=${address(run, 'jobs', { where: ofKind(kind, { [each.name]: each.value }) })}>${each.name} = ${shown(each.value)}</a>: ${number(each.failed)} of ${number(each.total)} failed</li>`)}</ul>`}
      <dl>${kind.examples.filter((each) => each.line !== undefined).map((each) => html`<div key=${each.id}><dt><a href=${address(run, 'job', { id: each.id })}>${each.id}</a>${each.node ? ` on ${shown(each.node)}` : ''}</dt>
        <dd>${each.line ? html`<code>${clean(each.line)}</code>` : html`<span class="quiet">wrote nothing</span>`}</dd></div>`)}</dl>
      ${kind.examples.length > 3 && html`<details><summary>More of them</summary><p>${kind.examples.slice(3).map((each) => html`<a key=${each.id} href=${address(run, 'job', { id: each.id })}>${each.id}</a> `)}</p></details>`}</article>`)}
  </${Loaded}></section>`;
}

const COST_FORMATS = { 'median time': duration, 'longest time': duration, 'time limit': duration, 'median wait': duration, 'of limit': percent };
function Costs({ run, here, overview, seq }) {
  const found = useData(run, 'costs', {}, seq);
  const { progress } = overview;
  return html`<section><h2>Costs</h2>
    ${progress && html`<div class="scroll" tabindex="0" role="region" aria-label="Totals"><table><thead><tr><th scope="col">of the run</th>${['used', 'committed', 'limit'].map((name) => html`<th key=${name} scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${Object.keys({ ...progress.used, ...progress.limits }).map((name) => html`<tr key=${name}><th scope="row">${name.replace('_', '-')}</th>
        ${[progress.used, progress.committed, progress.limits].map((each, n) => html`<td class="number" key=${n}>${each[name] === undefined ? '–' : number(each[name])}</td>`)}</tr>`)}</tbody></table></div>`}
    <${Loaded} of=${found}>${(groups) => {
      const rows = groups.map((group) => {
        const hours = Object.values(group.core_hours).reduce((a, b) => a + b, 0);
        const wasted = hours - (group.core_hours.success || 0) - (group.core_hours.active || 0);
        const took = group.duration, asked = group.time_limit;
        return [group.group, hours, wasted, took && took.median, took && took.longest, asked,
          asked && took ? took.longest / asked : null, group.waiting && group.waiting.median];
      });
      return html`<${Table} id="costs" here=${here} caption="Costs of each group" rows=${rows} formats=${COST_FORMATS}
        names=${['group', 'core-hours', 'failed', 'median time', 'longest time', 'time limit', 'of limit', 'median wait']} />`;
    }}</${Loaded}></section>`;
}

// Columns that hold an error of another: error.NAME, NAME_error, NAME-error.
const errorOf = (names, name) => names.findIndex((each) => [`error.${name}`, `${name}_error`, `${name}-error`].includes(each));

// Jobs of which each has a mark or a bar in a chart, at most.
const MOST_MARKS = 2000;
const jobsOf = ({ groups }) => groups.reduce((all, group) => all + group.submitted - group.repeated, 0);

function Results({ run, here, overview, seq }) {
  const tables = useData(run, 'tables', {}, seq), curves = useData(run, 'curves', {}, seq);
  const jobs = useData(run, 'jobs', { limit: MOST_MARKS + 1 }, seq);
  return html`<section><h2>Results</h2>
    <${Loaded} of=${tables}>${(found) => html`${!found.length && html`<p class="quiet">The ensemble file has no tables under "results:".</p>`}
      ${found.map((table) => html`<article key=${table.name}><h3>${table.name} <span class="quiet">${table.kind === 'table' ? `of ${table.of}` : 'points of a generator'}</span></h3>
        <${Pair} table=${table} here=${here} />
        <${Table} id=${table.name} here=${here} names=${table.names} rows=${table.rows} caption=${table.name} /></article>`)}`}</${Loaded}>
    <h2>Jobs: a column against another</h2>
    <${Loaded} of=${jobs}>${(page) => jobsOf(overview) > MOST_MARKS ? html`<p class="quiet">${number(jobsOf(overview))} jobs are too many for a mark each: a table under "results:" puts them together.</p>`
      : groupsOf(page).map((group) => html`<${Pair} key=${group.name} table=${group} here=${here} />`)}</${Loaded}>
    <h2>What jobs reported while they ran</h2>
    <${Loaded} of=${curves}>${(all) => html`${!all.length && html`<p class="quiet">No job reported values: "observe:" has jobs' output read.</p>`}
      ${all.filter((one) => one.jobs.some((job) => job.points.length > 1)).map((one) => html`<${Chart} key=${one.group + one.variable} title=${`${one.variable} of ${plural(one.jobs.length, 'job')} of ${one.group}`} xName="seconds since the job's first value" yName=${one.variable}
        series=${one.jobs.map((job) => ({ name: job.id, points: job.points, line: true }))} />`)}`}</${Loaded}></section>`;
}

// The jobs of each group as a table of their parameters and results, for a picture.
function groupsOf({ names, rows }) {
  const at = names.indexOf('group'), own = new Set(['group', 'index', 'attempts', 'exit_code', 'submitted', 'started', 'finished']);
  const columns = names.map((name, n) => [name, n]).filter(([name]) => !own.has(name));
  return [...new Set(rows.map((row) => row[at]))].map((group) => {
    const mine = rows.filter((row) => row[at] === group);
    const kept = columns.filter(([, n]) => new Set(mine.map((row) => row[n])).size > 1);
    const results = kept.filter(([, n]) => n > names.indexOf('core_hours')).map(([name]) => name);
    const parameters = kept.filter(([, n]) => n < names.indexOf('outcome')).length;
    return { name: group, kind: 'jobs', parameters, names: kept.map(([name]) => name), rows: mine.map((row) => kept.map(([, n]) => row[n])), plot: { y: results[0] } };
  });
}

// One column of a table against another.
function Pair({ table, here }) {
  const numeric = table.names.filter((_, at) => table.rows.some((row) => typeof row[at] === 'number'));
  if (numeric.length < 2) return '';
  const plot = table.plot || {}, known = (name) => numeric.includes(name) ? name : undefined;
  const distinct = (name) => new Set(table.rows.map((row) => row[table.names.indexOf(name)])).size;
  const given = numeric.filter((name) => table.names.indexOf(name) < (table.parameters || 0));
  const most = (given.length ? given : numeric).reduce((a, b) => distinct(b) > distinct(a) ? b : a);
  const x = known(here.query[`${table.name}-x`]) || known(plot.x) || (table.kind === 'jobs' ? most : numeric[0]);
  const y = known(here.query[`${table.name}-y`]) || known(plot.y) || numeric.find((name) => name !== x && !name.includes('error')) || numeric[1];
  const few = table.kind === 'jobs' ? table.names.slice(0, table.parameters).find((name) => name !== x && name !== y && distinct(name) > 1 && distinct(name) <= 7) : undefined;
  const by = [here.query[`${table.name}-by`] ?? plot.by ?? plot.series ?? few].find((name) => table.names.includes(name)) || '';
  const [ax, ay, ab, ae] = [table.names.indexOf(x), table.names.indexOf(y), table.names.indexOf(by), errorOf(table.names, y)];
  const series = new Map();
  for (const row of table.rows) {
    const name = by ? `${by} = ${typeof row[ab] === 'number' ? number(row[ab]) : shown(row[ab])}` : y;
    if (!series.has(name)) series.set(name, []);
    series.get(name).push([row[ax], row[ay], ae >= 0 ? row[ae] : undefined]);
  }
  const choose = (label, value, names, set) => html`<label>${label} <select value=${value} onChange=${(event) => go(here, { [`${table.name}-${set}`]: event.target.value || 'none' })}>
    ${names.map((name) => html`<option key=${name} value=${name} selected=${name === value}>${name || 'none'}</option>`)}</select></label>`;
  let best = null;
  if (table.kind === 'generator') best = table.rows.map((row) => row[ay]).filter(Number.isFinite);
  return html`<div class="tools">${choose('x', x, numeric, 'x')} ${choose('y', y, numeric, 'y')} ${choose('by', by, ['', ...table.names.filter((name) => name !== x && name !== y)], 'by')}
    ${best && best.length > 0 && html`<span>lowest ${number(Math.min(...best))}, highest ${number(Math.max(...best))}</span>`}</div>
    <${Chart} title=${`${table.name}: ${y} against ${x}`} xName=${x} yName=${y} series=${[...series].map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]), line: table.kind !== 'jobs' && series.size <= 7 && Boolean(by) }))} />`;
}

function Rules({ run, here, overview, seq }) {
  const found = useData(run, 'firings', {}, seq);
  const began = overview.began || 0, span = Math.max((overview.newest || began) - began, 1e-3);
  return html`<section><h2>Rules</h2><${Loaded} of=${found}>${(firings) => {
    const lanes = new Map(overview.rules.map((rule) => [rule.id, []]));
    for (const each of firings) { if (!lanes.has(each.rule)) lanes.set(each.rule, []); lanes.get(each.rule).push(each); }
    const names = [...lanes.keys()].filter((name) => lanes.get(name).length);
    const height = 30 * names.length + 34, left = NARROW ? 100 : 130, width = WIDTH, most = NARROW ? 13 : 18;
    const px = (seconds) => left + 4 + seconds / span * (width - left - 20);
    const never = overview.rules.filter((rule) => !rule.fired);
    const all = overview.rules.reduce((sum, rule) => sum + rule.fired, 0);
    return html`${names.length > 0 && html`<${Figure} title="Firings of each rule over time" height=${height}>
        ${names.map((name, n) => html`<g key=${name}><text x=${left - 8} y=${30 * n + 24} text-anchor="end">${short(name, most)}</text>
          <line x1=${left} x2=${width - 10} y1=${30 * n + 20} y2=${30 * n + 20} stroke="currentColor" stroke-opacity="0.2" />
          ${drawn(lanes.get(name)).map((each) => html`<path key=${each.firing} d=${marks[n % 7](px(each.time - began), 30 * n + 20)}
            stroke=${SERIES[n % 6]} fill=${SERIES[n % 6]}><title>${`${duration(each.time - began)}: ${each.event}${each.value === null ? '' : `, value ${number(each.value)}`}: ${each.decisions.join(', ')}`}</title></path>`)}</g>`)}
        ${ticks(0, span, NARROW ? 3 : 6, TIME_STEPS).map((at) => html`<text key=${at} x=${px(at)} y=${height - 8} text-anchor=${anchor(px(at))}>${duration(at)}</text>`)}</${Figure}>`}
      ${never.length > 0 && html`<h3>Never fired</h3><dl>${never.map((rule) => html`<div key=${rule.id}><dt>${rule.id} <span class="quiet">${rule.label}</span></dt><dd>${rule.reason}
        <${Command} text=${`ensemble why ${run} ${rule.id}`} /></dd></div>`)}</dl>`}
      <h3>Firings</h3>${all > firings.length && html`<p class="quiet">${number(firings.length)} of ${plural(all, 'firing')}: of rules that fired very often, some are left out. "ensemble events" has each.</p>`}
      <${Table} id="firings" here=${here} caption="Firings" formats=${{ time: duration }} names=${['event', 'time', 'rule', 'what happened', 'value', 'for', 'decisions']}
        rows=${firings.map((each) => [each.seq, each.time - began, each.rule, each.event, each.value, Object.entries(each.each).map(([name, value]) => `${name}=${shown(value)}`).join(' '), each.decisions.join(', ')])} />`;
  }}</${Loaded}></section>`;
}
// Marks that would hide each other are left out of a lane.
const drawn = (firings) => firings.length <= 400 ? firings : firings.filter((_, n) => n % Math.ceil(firings.length / 400) === 0);

function Timeline({ run, here, overview, seq }) {
  // Of a run that goes on, bars grow without an event.
  const moment = overview.state === 'running' ? Math.floor(overview.until / 10) : '';
  const found = useData(run, 'timeline', {}, `${seq} ${moment}`);
  const jobs = useData(run, 'jobs', { limit: MOST_MARKS + 1 }, seq);
  const by = here.query.by || 'slots';
  return html`<section><h2>Timeline</h2>
    <${Loaded} of=${found}>${({ width, groups }) => html`<${Chart} title="Jobs that ran at a time" xName="seconds since the run began" yName="running jobs" stacked=${true}
      series=${Object.entries(groups).map(([name, one]) => ({ name, line: true, points: one.running.map((count, n) => [(n + 0.5) * width, count]) }))} />`}</${Loaded}>
    <${Loaded} of=${jobs}>${(page) => jobsOf(overview) > MOST_MARKS ? html`<p class="quiet">${number(jobsOf(overview))} jobs are too many for a bar each, so the chart above counts them.${' '}
        ${source.left || html`<a href=${address(run, 'jobs')}>The table</a> has each.`}</p>` : html`<${Bars} run=${run} here=${here} page=${page} overview=${overview} by=${by} />`}</${Loaded}></section>`;
}

function Bars({ run, here, page, overview, by }) {
  const at = (name) => page.names.indexOf(name);
  const began = overview.began || 0, end = overview.until || began + 1;
  const from = +(here.query.from || 0), until = +(here.query.until || end - began) || 1;
  const choices = ['slots', 'group', ...page.names.filter((_, n) => n > 2 && n < at('outcome'))];
  const rows = page.rows.filter((row) => row[at('started')] !== null).sort((a, b) => a[at('started')] - b[at('started')]);
  const lanes = new Map();  // of each value: when each of its lines is free
  const bars = rows.map((row) => {
    const value = by === 'slots' || at(by) < 0 ? '' : shown(row[at(by)]);
    if (!lanes.has(value)) lanes.set(value, []);
    const free = lanes.get(value), start = row[at('started')], stop = row[at('finished')] ?? end;
    let line = free.findIndex((until) => until <= start);
    if (line < 0) { line = free.length; free.push(0); }
    free[line] = stop;
    return { row, value, line, start: start - began, stop: stop - began };
  });
  const values = [...lanes.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  const first = new Map();
  let count = 0;
  for (const value of values) { first.set(value, count); count += lanes.get(value).length; }
  const size = Math.max(3, Math.min(16, 600 / Math.max(count, 1))), left = by === 'slots' ? 10 : 110, width = WIDTH;
  const px = (seconds) => left + (seconds - from) / (until - from) * (width - left - 10);
  const zoom = (factor) => { const middle = (from + until) / 2, half = (until - from) * factor / 2; go(here, { from: Math.max(0, middle - half).toPrecision(6), until: Math.min(end - began, middle + half).toPrecision(6) }); };
  const move = (share) => { const by = (until - from) * share, low = Math.max(0, Math.min(from + by, end - began - (until - from))); go(here, { from: low.toPrecision(6), until: (low + until - from).toPrecision(6) }); };
  return html`<div class="tools"><label>Lines by <select value=${by} onChange=${(event) => go(here, { by: event.target.value })}>${choices.map((name) => html`<option key=${name} value=${name} selected=${name === by}>${name}</option>`)}</select></label>
      <button type="button" onClick=${() => zoom(0.5)}>Zoom in</button> <button type="button" onClick=${() => zoom(2)}>Zoom out</button>
      <button type="button" onClick=${() => move(-0.5)} aria-label="Earlier">←</button> <button type="button" onClick=${() => move(0.5)} aria-label="Later">→</button></div>
    <${Figure} role="group" title=${`When ${plural(bars.length, 'job')} ran`} height=${count * size + 30}>
      ${by !== 'slots' && values.map((value) => html`<text key=${value} x=${left - 6} y=${first.get(value) * size + 11} text-anchor="end">${short(value, 15)}</text>`)}
      ${bars.filter((bar) => bar.stop >= from && bar.start <= until).map(({ row, value, line, start, stop }) => {
        const outcome = row[at('outcome')], id = `${row[at('group')]}.${row[at('index')]}`;
        const x = Math.max(left, px(start)), wide = Math.max(1, Math.min(width - 10, px(stop)) - x);
        return html`<a key=${id} href=${address(run, 'job', { id })} aria-label=${`${id}, ${(STATES[outcome] || [0, 0, outcome])[2]}`}><rect x=${x} y=${(first.get(value) + line) * size} width=${wide} height=${size - 1} rx="1"
          fill=${(STATES[outcome] || ['#888'])[0]} stroke=${outcome === 'failed' ? 'currentColor' : 'none'}><title>${`${id}: ${(STATES[outcome] || [0, 0, outcome])[2]}, ${duration(stop - start)}`}</title></rect></a>`;
      })}
      ${ticks(from, until, NARROW ? 4 : 7, TIME_STEPS).map((x) => html`<text key=${x} x=${px(x)} y=${count * size + 20} text-anchor=${anchor(px(x))}>${duration(x)}</text>`)}</${Figure}>
    <p class="legend">${['success', 'active', 'failed', 'cancelled'].map((name) => html`<${State} key=${name} name=${name} />`)}</p>`;
}

function Jobs({ run, here, seq }) {
  const { sort = '', desc = '', text = '', where = '{}', page = '' } = here.query;
  const asked = { sort, descending: desc, text, where };
  const found = useData(run, 'jobs', { ...asked, offset: 100 * +page, limit: 100 }, seq);
  const confines = Object.entries(JSON.parse(where));
  return html`<section><h2>Jobs</h2>
    ${source.left && html`<p class="problem">${source.left}</p>`}
    ${confines.length > 0 && html`<p class="tools">Only ${confines.map(([name, value]) => html`<button key=${name} type="button" aria-label=${`Show others than ${name} = ${shown(value)} too`}
      onClick=${() => go(here, { where: JSON.stringify(Object.fromEntries(confines.filter(([other]) => other !== name))), page: '' })}>${name} = ${shown(value)} ✕</button>`)}</p>`}
    <${Loaded} of=${found}>${(data) => {
      const own = [data.names.indexOf('group'), data.names.indexOf('index')];
      const link = (row) => address(run, 'job', { id: `${row[own[0]]}.${row[own[1]]}` });
      return html`<${Grid} caption="Jobs" names=${data.names} rows=${data.rows} total=${data.total} offset=${data.offset} sort=${sort} descending=${desc} text=${text}
        links=${{ group: link, index: link }} every=${async () => (await source.get(run, 'jobs', { ...asked, limit: 1000000 })).data.rows} set=${(query) => go(here, query)} />`;
    }}</${Loaded}></section>`;
}

function Job({ run, here, seq }) {
  const id = here.query.id || '', at = id.lastIndexOf('.');
  const found = useData(run, 'job', { group: id.slice(0, at), index: id.slice(at + 1) }, seq);
  return html`<section><p><a href=${address(run, 'jobs')}>All jobs</a></p><h2>${id}</h2><${Loaded} of=${found}>${(job) => {
    const variables = [...new Set(job.values.flatMap(([, values]) => Object.keys(values)))];
    const newest = job.row.attempts > 1 ? `${id}-${job.row.attempts - 1}` : id;
    const start = job.values.length ? job.values[0][0] : 0;
    return html`<p><${State} name=${job.row.outcome} />${job.row.cause && ` (${job.row.cause})`}</p>
      <div class="scroll" tabindex="0" role="region" aria-label="The job's row"><table><tbody>${Object.entries(job.row).filter(([, value]) => value !== null).map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td>${typeof value === 'object' ? JSON.stringify(value) : cell(name, value)}</td></tr>`)}</tbody></table></div>
      ${job.attempts.map((each) => html`<article class="card" key=${each.id}><h3>${each.id}</h3><pre>${each.command.join(' ')}</pre><p class="quiet">${each.workdir ? `in ${each.workdir}` : ''}</p></article>`)}
      ${job.rules.length > 0 && html`<h3>Rules that touched it</h3><ul>${job.rules.map((each, n) => html`<li key=${n}>${each.rule}: ${each.decision} <span class="quiet">at event ${each.seq}</span></li>`)}</ul>`}
      ${variables.map((name) => html`<${Chart} key=${name} title=${`${name} of ${id}`} xName="seconds since its first value" yName=${name}
        series=${[{ name, line: true, points: job.values.filter(([, values]) => typeof values[name] === 'number').map(([when, values]) => [when - start, values[name]]) }]} />`)}
      ${['stdout', 'stderr'].map((stream) => html`<${Log} key=${stream} run=${run} job=${newest} stream=${stream} seq=${seq} />`)}
      ${job.events.length > 0 && html`<h3>Events</h3><${Table} id="events" here=${here} caption="Events" names=${['event', 'at', 'job', 'name', 'context']}
        rows=${job.events.map((each) => [each.seq, time(each.time), each.job, each.name || each.type, Object.keys(each.context).length ? JSON.stringify(each.context) : ''])} />`}`;
  }}</${Loaded}></section>`;
}

function Log({ run, job, stream, seq }) {
  const found = useData(run, 'log', { job, stream }, seq);
  return html`<h3>${stream === 'stdout' ? 'Output' : 'Errors'}</h3><${Loaded} of=${found}>${(log) => log.text
    ? html`<pre tabindex="0" aria-label=${stream}>${clean(log.text).split('\n').map((line) => line.length > 2000 ? `${line.slice(0, 2000)} … (${number(line.length)} characters)` : line).join('\n')}</pre>
      ${log.size > log.text.length && html`<p class="quiet">The end of ${number(log.size)} bytes.</p>`}`
    : html`<p class="quiet">${log.problem || 'It is empty.'}</p>`}</${Loaded}>`;
}

const VIEWS = { overview: ['Overview', Overview], failures: ['Failures', Failures], costs: ['Costs', Costs], results: ['Results', Results],
  rules: ['Rules', Rules], timeline: ['Timeline', Timeline], jobs: ['Jobs', Jobs], job: [null, Job] };

function App() {
  const here = useAddress();
  const [runs, setRuns] = useState([]);
  const [problem, setProblem] = useState('');
  const [overview, setOverview] = useState(null);
  const [now, setNow] = useState(Date.now() / 1000);
  const run = here.run || runs[0] || '';
  useEffect(() => { source.runs().then(setRuns, (error) => setProblem(error.message)); }, []);
  useEffect(() => {
    let wanted = true, timer;
    const look = () => source.get(run, 'overview').then(({ data }) => {
      if (!wanted) return;
      setProblem(''); setOverview(data); setNow(source.live ? Date.now() / 1000 : source.made);
      if (source.live) timer = setTimeout(again, data.state === 'running' ? 1000 : 5000);
    }, (error) => { if (wanted) { setProblem(error.message); timer = setTimeout(again, 5000); } });
    const again = () => whenShown(() => wanted && look());
    if (run) look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [run]);
  useEffect(() => { document.title = `${run ? `${run} – ` : ''}Ensemble`; }, [run]);
  const [, View] = VIEWS[here.view] || VIEWS.overview;
  const ready = overview && overview.tag === run;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>To the content</a>
    <nav class="views" aria-label="Views"><span class="brand">Ensemble</span>
      ${runs.length > 1 && html`<label><span class="hidden">Run</span><select value=${run} onChange=${(event) => { location.hash = address(event.target.value, 'overview'); }}>${runs.map((tag) => html`<option key=${tag} value=${tag} selected=${tag === run}>${tag}</option>`)}</select></label>`}
      ${Object.entries(VIEWS).filter(([, [label]]) => label).map(([name, [label]]) => html`<a key=${name} href=${address(run, name)} aria-current=${here.view === name ? 'page' : undefined}>${label}</a>`)}</nav>
    <main id="main" tabindex="-1">${problem && html`<p class="problem" role="alert">${problem}</p>`}
      ${ready ? html`<${Header} run=${run} overview=${overview} now=${now} /><${View} run=${run} here=${{ ...here, run }} overview=${overview} seq=${overview.events} />`
        : !problem && html`<p class="quiet" role="status">reading …</p>`}</main>
    <footer class="quiet">${source.live ? 'Read-only; updated while it is shown.' : `Report of ${time(source.made)} UTC.`} Times are UTC.</footer>`;
}

render(html`<${App} />`, document.getElementById('app'));
