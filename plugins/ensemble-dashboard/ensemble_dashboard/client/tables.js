// Parts of views: states, bars, buttons that copy, and tables.
'use strict';

function State({ name, count }) {
  const [colour, shape, word] = stateOf(name);
  return html`<span class="state">
    <span style=${{ color: colour }} aria-hidden="true">${shape}</span>${' '}
    ${count === undefined ? '' : `${number(count)} `}${word}</span>`;
}

// `parts`: the names of states with their counts.
function Bar({ parts }) {
  const there = parts.filter(([, count]) => count > 0);
  const total = sum(there.map(([, count]) => count));
  const words = ([name, count]) => `${count} ${stateOf(name)[2]}`;
  const fill = (part) => html`<span key=${part[0]} class=${`fill ${part[0]}`} title=${words(part)}
    style=${{ width: `${100 * part[1] / total}%`, backgroundColor: stateOf(part[0])[0] }}></span>`;
  return html`<div>
    <div class="bar" role="img" aria-label=${there.map(words).join(', ') || 'no jobs yet'}>
      ${there.map(fill)}</div>
    <div class="legend">${there.map(([name, count]) => html`
      <${State} key=${name} name=${name} count=${count} />`)}</div></div>`;
}

function download(name, kind, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
async function copyText(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
  return undefined;
}
// `text`: a text, or a function that returns one in a moment.
function Copy({ label, text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(typeof text === 'function' ? await text() : text);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return html`<button type="button" onClick=${copy}>${done ? 'copied' : label}</button>`;
}
const Command = ({ text }) => html`
  <p><code>${text}</code> <${Copy} label="Copy" text=${text} /></p>`;

const plain = (value) => !isThere(value) ? ''
  : typeof value === 'object' ? JSON.stringify(value) : String(value);
const csvCell = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
const csv = (names, rows) => [names, ...rows]
  .map((row) => row.map((value) => csvCell(plain(value))).join(',')).join('\n');
const markdownCell = (text) => text.replace(/[\\|]/g, (sign) => `\\${sign}`)
  .replace(/\r\n|[\r\n\u2028\u2029]/g, ' ');
const markdown = (names, rows) => [names, names.map(() => '---'), ...rows]
  .map((row) => `| ${row.map((value) => markdownCell(plain(value))).join(' | ')} |`)
  .join('\n');

const Select = ({ label, value, names, set }) => html`<label>${label}${' '}
  <select value=${value} onChange=${(event) => set(event.target.value)}>${names.map((name) => html`
    <option key=${name} value=${name} selected=${name === value}>${name || 'none'}</option>`)}
  </select></label>`;

const Scrolled = ({ label, children }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table><caption class="hidden">${label}</caption>${children}</table></div>`;

// Asks while one types; NAME=VALUE waits for Enter.
function Filter({ text, hint, set }) {
  const [typed, setTyped] = useState(text), timer = useRef();
  useEffect(() => setTyped(text), [text]);
  const apply = (value, soon) => {
    clearTimeout(timer.current);
    setTyped(value);
    if (!soon) set(value);
    else if (!value.includes('=')) timer.current = setTimeout(() => set(value), 300);
  };
  return html`<label>Filter <input type="search" size="28" placeholder=${hint} value=${typed}
    onInput=${(event) => apply(event.target.value, true)}
    onChange=${(event) => apply(event.target.value)} /></label>`;
}

// A table whose rows are all here. `id` keeps its order and filter in the address.
// `formats` has functions that write the numbers of a column.
function Table({ id, here, names, rows, links = {}, formats = {}, caption }) {
  const asked = (name) => here.query[`${id}-${name}`] || '';
  const sort = asked('sort'), descending = asked('desc'), text = asked('text');
  const offset = 100 * +asked('page');
  const set = (query) => go(here, Object.fromEntries(
    Object.entries(query).map(([name, value]) => [`${id}-${name}`, value])));
  const found = useMemo(
    () => pageOf({ names, rows }, { text, sort, descending, limit: rows.length }).rows,
    [names, rows, text, sort, descending]);
  return html`<${Grid} caption=${caption} names=${names} rows=${found.slice(offset, offset + 100)}
    total=${found.length} offset=${offset} sort=${sort} descending=${descending} text=${text}
    links=${links} formats=${formats} every=${() => found} set=${set} few=${rows.length < 6} />`;
}

// A page of a table. `every` returns all rows that match; `set` changes the address. Columns of
// `hidden` are only in copies; a table of `few` rows needs no filter.
function Grid(props) {
  const { caption, names, rows, total, offset, text, formats = {}, links, every, set } = props;
  const { sort, descending, hint = 'part of a value', hidden = [], few } = props;
  const numeric = new Set(names.filter((name, at) => !TIMES.has(name)
    && rows.some((row) => typeof row[at] === 'number')));
  const isShown = (name) => !hidden.includes(name);
  const kind = (name) => numeric.has(name) ? 'number' : '';
  const turned = (name) => sort === name && !descending ? '1' : '';
  const order = (name) => set({ sort: name, desc: turned(name), page: '' });
  const direction = descending ? 'descending' : 'ascending';
  const heading = (name) => html`<th key=${name} scope="col" class=${kind(name)}
    aria-sort=${sort === name ? direction : 'none'}>
    <button type="button" onClick=${() => order(name)}>
      ${name}${sort === name ? (descending ? ' ↓' : ' ↑') : ''}</button></th>`;
  const content = (name, value) => {
    if (name === 'outcome') return html`<${State} name=${value} />`;
    if (value !== null && typeof value === 'object') return JSON.stringify(value);
    const format = own(formats, name);
    return format && typeof value === 'number' ? format(value) : cell(name, value);
  };
  const line = (row, n) => html`<tr key=${offset + n}>${row.map((value, at) => {
    if (!isShown(names[at])) return '';
    const name = names[at], inside = content(name, value);
    const long = typeof inside === 'string' && inside.length > 40;
    return html`<td key=${name} class=${long ? 'text' : kind(name)}>
      ${own(links, name) ? html`<a href=${own(links, name)(row)}>${inside}</a>` : inside}</td>`;
  })}</tr>`;
  const last = Math.min(total, offset + 100);
  const pages = (where) => total > 100 && html`<nav class="tools" aria-label=${`Pages ${where}`}>
    <button type="button" disabled=${offset === 0}
      onClick=${() => set({ page: offset / 100 - 1 || '' })}>Previous</button>
    <span>${number(offset + 1)}–${number(last)} of ${number(total)}</span>
    <button type="button" disabled=${last >= total}
      onClick=${() => set({ page: offset / 100 + 1 })}>Next</button></nav>`;
  return html`<div class="tools">
      ${!few && html`<${Filter} text=${text} hint=${hint}
        set=${(value) => set({ text: value, page: '' })} />`}
      <${Copy} label="Copy CSV" text=${async () => csv(names, await every())} />
      <${Copy} label="Copy Markdown" text=${async () => markdown(names, await every())} />
      <span class="quiet" role="status">${plural(total, 'row')}</span>${pages('above')}</div>
    ${total === 0 && text && html`<p>No row has “${text}”.${' '}
      <button type="button" onClick=${() => set({ text: '', page: '' })}>Clear the filter</button>
    </p>`}
    <${Scrolled} label=${caption}>
      <thead><tr>${names.filter(isShown).map(heading)}</tr></thead>
      <tbody>${rows.map(line)}</tbody></${Scrolled}>
    ${pages('below')}`;
}
