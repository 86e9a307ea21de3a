// Where the data come from (a report has them, a dashboard is asked), and the page's address.
'use strict';
const { html, render, useState, useEffect, useMemo, useRef } = htmPreact;

const embedded = document.getElementById('data');

// `get` returns `data` of one kind; `again`, that newer data will be there in a moment.
class Report {
  constructor(data) {
    this.data = data;
    this.live = false;
    this.made = data.made;
    this.left = data.left_out;
  }
  async runs() { return [this.data.overview.tag]; }
  async get(run, name, query) { return { data: this.document(name, query) }; }
  document(name, query = {}) {
    if (name === 'jobs') return pageOf(this.data.jobs, query);
    if (name === 'job') return this.job(`${query.group}.${query.index}`);
    if (name !== 'log') return own(this.data, name);
    const { logs, overview } = this.data, kept = Object.keys(logs).length;
    const problem = kept
      ? `This log is not in the report, which has those of ${plural(kept, 'job')}: a sample of `
        + 'each kind of failure, listed under "Failures".'
      : `This report was made without logs: ${command('report RUN --with-logs', overview)}`;
    return own(own(logs, query.job) || {}, query.stream) || { text: '', problem };
  }
  job(id) {
    if (own(this.data.details, id)) return this.data.details[id];
    const { names, rows } = this.data.jobs;
    const at = [names.indexOf('group'), names.indexOf('index')];
    const row = rows.find((each) => `${each[at[0]]}.${each[at[1]]}` === id);
    if (!row) throw new Error(`this report has no job ${id}`);
    const touched = (job) => job && (job === id || job.startsWith(`${id}-`));
    return {
      id, row: Object.fromEntries(names.map((name, n) => [name, row[n]])),
      attempts: [], events: [], values: [],
      left: 'This report leaves out the command, node and events of this job. They are in the '
        + `dashboard: ${command('dashboard RUN', this.data.overview)}`,
      rules: this.data.firings.filter((each) => touched(each.job))
        .map((each) => ({ ...each, decision: each.decisions.join(', ') })),
    };
  }
}

// A command for the terminal, which may start in any folder.
const command = (words, { tag, state_option: place }) =>
  `ensemble ${words.replace('RUN', tag)}${place ? ` ${place}` : ''}`;

const UNREACHABLE = 'The dashboard does not answer: was it stopped? '
  + '"ensemble dashboard" starts it again.';
const NO_TOKEN = 'The token is missing or wrong. '
  + 'Open the address that "ensemble dashboard" printed.';

class Server {
  constructor() {
    this.live = true;
    const given = /token=([\w-]+)/.exec(location.hash);
    if (given) {
      sessionStorage.setItem('token', given[1]);
      const rest = location.hash.replace(/[?&]?token=[\w-]+/, '').replace(/^#$/, '');
      history.replaceState(null, '', location.pathname + rest);
    }
  }
  async fetch(path) {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem('token') || ''}` };
    const answer = await fetch(path, { headers, cache: 'no-store' })
      .catch(() => { throw new Error(UNREACHABLE); });
    if (answer.status === 401) throw new Error(NO_TOKEN);
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.error || `the dashboard answered ${answer.status}`);
    if (answer.status !== 202) return { data, again: answer.headers.has('Retry-After') };
    // A large run is still being read.
    await new Promise((done) => setTimeout(done, 300));
    return this.fetch(path);
  }
  async runs() { return (await this.fetch('api/runs')).data; }
  get(run, name, query = {}) {
    return this.fetch(`api/runs/${encodeURIComponent(run)}/${name}?${given(query)}`);
  }
}

const given = (query) => new URLSearchParams(
  Object.entries(query).filter(([, value]) => value !== '' && isThere(value)));

// Columns of jobs in which no text is searched.
const NOT_SEARCHED = new Set([...TIMES, 'duration', 'core_hours', 'group', 'index']);

// A page of a table that is here as a whole: filtered, sorted, cut as the server does it.
function pageOf({ names, rows }, query) {
  const { where = '{}', text = '', sort = '', descending = '', offset = 0, limit = 100 } = query;
  let found = rows;
  for (const [name, value] of Object.entries(JSON.parse(where))) {
    const at = names.indexOf(name);
    found = found.filter((row) => String(row[at]) === String(value));
  }
  if (text) {
    const wanted = text.toLowerCase();
    const group = names.indexOf('group'), index = names.indexOf('index'), ofJobs = index >= 0;
    const searched = names.map((name) => !ofJobs || !NOT_SEARCHED.has(name));
    const holds = (value) => isThere(value) && String(value).toLowerCase().includes(wanted);
    found = found.filter((row) => row.some((value, at) => searched[at] && holds(value))
      || (ofJobs && holds(`${row[group]}.${row[index]}`)));
  }
  if (sort) found = sorted(found, names.indexOf(sort), descending === '1');
  const rowsOfPage = found.slice(+offset, +offset + +limit);
  return { names, rows: rowsOfPage, total: found.length, offset: +offset };
}
function sorted(rows, at, descending) {
  const sign = descending ? -1 : 1;
  const order = (a, b) => typeof a === 'number' && typeof b === 'number' ? a - b
    : typeof a === 'number' ? -1 : typeof b === 'number' ? 1 : String(a).localeCompare(String(b));
  const having = rows.filter((row) => isThere(row[at]));
  having.sort((a, b) => sign * order(a[at], b[at]));
  return [...having, ...rows.filter((row) => !isThere(row[at]))];
}

const source = embedded ? new Report(JSON.parse(embedded.textContent)) : new Server();

// -- the address: #/RUN/VIEW?NAME=VALUE, so that each view can be linked to -----------------------

function readAddress() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [run = '', view = ''] = path.split('/').map(decodeURIComponent);
  return { run, view: view || 'overview', query: Object.fromEntries(new URLSearchParams(query)) };
}
function address(run, view, query = {}) {
  const words = given(query).toString();
  return `#/${encodeURIComponent(run)}/${view}${words ? `?${words}` : ''}`;
}
const jobAddress = (run, id) => address(run, 'job', { id });
const jobsAddress = (run, where) => address(run, 'jobs', { where: JSON.stringify(where) });

function useAddress() {
  const [here, setHere] = useState(readAddress());
  useEffect(() => {
    const changed = () => setHere(readAddress());
    addEventListener('hashchange', changed);
    changed();  // it may have changed before
    return () => removeEventListener('hashchange', changed);
  }, []);
  return here;
}
function go(here, query) {
  history.replaceState(null, '', address(here.run, here.view, { ...here.query, ...query }));
  dispatchEvent(new HashChangeEvent('hashchange'));
}

// -- data of a view -------------------------------------------------------------------------------

// A page in the background asks for nothing.
const whenShown = (ask) => document.hidden
  ? document.addEventListener('visibilitychange', () => whenShown(ask), { once: true }) : ask();

// Data of one kind, asked for again when `seq` changes: the number of the run's newest event.
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
  return state.key === key ? state : {};
}
function Loaded({ of, children }) {
  if (of.error) return html`<p class="problem" role="alert">${of.error}</p>`;
  if (!of.data) return html`<p class="quiet" role="status">reading …</p>`;
  return children(of.data);
}
