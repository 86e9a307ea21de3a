// Views with pictures of jobs and results: the timeline, and one column against another.
'use strict';

const NO_JOBS = html`<p class="quiet">There are no jobs yet.</p>`;

// -- results --------------------------------------------------------------------------------------

// The jobs of each group as a table of their parameters and results, for a picture.
const NOT_DRAWN = new Set(['group', 'index', 'attempts', 'exit_code', ...TIMES]);
function groupsOf({ names, rows }) {
  const at = names.indexOf('group');
  const columns = names.map((name, n) => [name, n]).filter(([name]) => !NOT_DRAWN.has(name));
  return [...new Set(rows.map((row) => row[at]))].map((group) => {
    const mine = rows.filter((row) => row[at] === group);
    const kept = columns.filter(([, n]) => new Set(mine.map((row) => row[n])).size > 1);
    const results = kept.filter(([, n]) => n > names.indexOf('core_hours')).map(([name]) => name);
    return {
      name: group, kind: 'jobs', names: kept.map(([name]) => name), plot: { y: results[0] },
      parameters: kept.filter(([, n]) => n < names.indexOf('outcome')).length,
      rows: mine.map((row) => kept.map(([, n]) => row[n])),
    };
  });
}

const numericOf = ({ names, rows }) => names
  .filter((_, at) => rows.some((row) => typeof row[at] === 'number'));

// What the axes of a table can be, and what they are: by the address, else by `plot:` of the
// ensemble file, else by what the table has. Several columns are one choice: "U[16], U[32]".
function axesOf(table, query) {
  const { names, rows, kind, parameters = 0 } = table, plot = table.plot || {};
  const numeric = numericOf(table);
  const distinct = (name) => new Set(rows.map((row) => row[names.indexOf(name)])).size;
  const together = new Map();
  const add = (some) => some.length > 1 && together.set(some.join(', '), some);
  if (Array.isArray(plot.y)) add(plot.y.filter((name) => numeric.includes(name)));
  const pivoted = numeric.filter((name) => name.endsWith(']')).map((name) => name.split('[')[0]);
  for (const base of new Set(pivoted)) {
    add(numeric.filter((name) => name.startsWith(`${base}[`)));
  }
  const choices = [...together.keys(), ...numeric];
  const asked = (axis) => query[`${table.name}-${axis}`];
  const first = (...some) => some.find((name) => choices.includes(name));
  const own = numeric.filter((name) => names.indexOf(name) < parameters);
  const most = (own.length ? own : numeric).reduce((a, b) => distinct(b) > distinct(a) ? b : a);
  const x = first(asked('x'), plot.x) || (kind === 'jobs' ? most : numeric[0]);
  const y = first(asked('y'), [plot.y].flat().join(', '), ...together.keys())
    || numeric.find((name) => name !== x && errorsOf(table, name))
    || numeric.find((name) => name !== x && !name.includes('error')) || numeric[1];
  const few = kind === 'jobs' && names.slice(0, parameters)
    .find((name) => name !== x && name !== y && distinct(name) > 1 && distinct(name) <= 7);
  const by = asked('by') ?? plot.by ?? plot.series ?? few;
  const columns = together.get(y) || [y];
  return { numeric, choices, x, y, by: names.includes(by) ? by : '', columns };
}

// The column with the errors of another: as the ensemble file says, or NAME_error or NAME-error.
const errorsOf = ({ names, plot }, name) => (plot && plot.errors || {})[name]
  || [`error.${name}`, `${name}_error`, `${name}-error`].find((each) => names.includes(each));

// One column of a table against another.
function Pair({ table, here }) {
  if (numericOf(table).length < 2) return '';
  const { numeric, choices, x, y, by, columns } = axesOf(table, here.query);
  const at = (name) => table.names.indexOf(name);
  // Of several columns, each has its own errors, so the reader can only turn them off.
  const usual = columns.map((name) => errorsOf(table, name)).filter(Boolean).join(', ');
  const possible = columns.length > 1 ? [usual].filter(Boolean) : numeric.filter((n) => n !== y);
  const asked = here.query[`${table.name}-errors`];
  const errors = asked === 'none' ? '' : possible.includes(asked) ? asked : usual;
  const series = new Map();
  for (const name of columns) {
    const error = at(errors && errors === usual ? errorsOf(table, name) : errors);
    for (const row of table.rows) {
      const value = row[at(by)];
      const part = by && `${by} = ${shown(value)}`;
      const own = [columns.length > 1 || !by ? name : '', part].filter(Boolean).join(', ');
      if (!series.has(own)) series.set(own, []);
      series.get(own).push([row[at(x)], row[at(name)], error >= 0 ? row[error] : undefined]);
    }
  }
  const line = table.kind !== 'jobs' && series.size <= 7 && (Boolean(by) || columns.length > 1);
  const set = (axis) => (name) => go(here, { [`${table.name}-${axis}`]: name || 'none' });
  const others = table.names.filter((name) => name !== x && name !== y);
  return html`<div class="tools"><${Select} label="x" value=${x} names=${numeric} set=${set('x')} />
      <${Select} label="y" value=${y} names=${choices} set=${set('y')} />
      <${Select} label="by" value=${by} names=${['', ...others]} set=${set('by')} />
      ${possible.length > 0 && html`<${Select} label="errors" value=${errors}
        names=${['', ...possible]} set=${set('errors')} />`}</div>
    <${Chart} title=${`${table.name}: ${y} against ${x}`} xName=${x} yName=${short(y, 36)}
      series=${[...series].map(([name, points]) => (
        { name, points: points.sort((a, b) => a[0] - b[0]), line }))} />`;
}

// The values of each point of a generator in their order (the table has the best ones first), and
// the best of them so far that violates no constraint.
function BestSoFar({ table }) {
  const feasible = new Set(table.feasible), rows = [...table.rows].sort((a, b) => a[0] - b[0]);
  return Object.entries(table.objectives || {}).map(([name, goal]) => {
    const points = rows.map((row) => [row[0], row[table.names.indexOf(name)]]);
    const better = goal === 'maximize' ? Math.max : Math.min;
    const best = [];
    let so = null;
    for (const [n, value] of points.filter(([number]) => feasible.has(number))) {
      so = so === null ? value : better(so, value);
      best.push([n, so]);
    }
    return html`<p key=${name}>Best ${name} so far (${goal}):
        ${' '}<strong>${so === null ? 'none' : number(so)}</strong></p>
      <${Chart} title=${`${table.name}: best ${name} so far`} xName="point" yName=${name} series=${[
        { name: 'points', points }, { name: 'best so far', line: true, points: best }]} />`;
  });
}

function Results({ run, here, overview, seq }) {
  const tables = useData(run, 'tables', {}, seq), curves = useData(run, 'curves', {}, seq);
  const count = jobsOf(overview), many = count > MOST_MARKS;
  const jobs = useData(many ? '' : run, 'jobs', { limit: MOST_MARKS }, seq);
  const varied = (curves.data || []).filter(
    (each) => each.jobs.some((job) => job.points.length > 1));
  const about = ({ kind, of }) => kind === 'table' ? `of ${of}` : 'points of a generator';
  const one = (table) => html`<article key=${table.name}>
    <h3>${table.name} <span class="quiet">${about(table)}</span></h3>
    <${BestSoFar} table=${table} /><${Pair} table=${table} here=${here} />
    <${Table} id=${table.name} here=${here} names=${table.names} rows=${table.rows}
      caption=${table.name} />${(table.notes || []).map((note) =>
      html`<p class="quiet" key=${note}>${note}</p>`)}</article>`;
  const curve = ({ group, variable, jobs: some }) => html`<${Chart} key=${group + variable}
    title=${`${variable} of ${plural(some.length, 'job')} of ${group}`} times=${true}
    xName="time since the job's first value" yName=${variable}
    series=${some.map((job) => ({ name: job.id, points: job.points, line: true }))} />`;
  return html`<section><h2>Results</h2>
    <${Loaded} of=${tables}>${(found) => found.length ? found.map(one)
      : html`<p>This run has no tables of results: its ensemble file has no "results:".</p>`}
    </${Loaded}>
    ${!many && html`<h2>Jobs: a column against another</h2>
      <${Loaded} of=${jobs}>${(page) => page.total === 0 ? NO_JOBS
        : groupsOf(page).map((group) => html`
          <${Pair} key=${group.name} table=${group} here=${here} />`)}</${Loaded}>`}
    ${varied.length > 0 && html`<h2>What jobs reported while they ran</h2>${varied.map(curve)}`}
    </section>`;
}

// -- the timeline ---------------------------------------------------------------------------------

function Timeline({ run, here, overview, seq }) {
  // Of a run that goes on, bars grow without an event.
  const moment = overview.state === 'running' ? Math.floor(overview.until / 10) : '';
  const found = useData(run, 'timeline', {}, `${seq} ${moment}`);
  const count = jobsOf(overview), many = count > MOST_MARKS;
  const jobs = useData(many ? '' : run, 'jobs', { limit: MOST_MARKS }, seq);
  const nodes = useData(many ? '' : run, 'nodes', {}, seq);
  return html`<section><h2>Timeline</h2>
    <${Loaded} of=${found}>${({ width, groups }) => html`<${Chart} title="Jobs that ran at a time"
      xName="time since the run began" yName="running jobs" counts=${true} times=${true}
      series=${Object.entries(groups).map(([name, { running }]) => (
        { name, line: true, points: running.map((jobs, n) => [(n + 0.5) * width, jobs]) }))} />`}
    </${Loaded}>
    ${many ? html`<p class="quiet">${number(count)} jobs are too many for a bar each, so the chart
        above counts them.${' '}
        ${source.left || html`<a href=${address(run, 'jobs')}>The table</a> has each.`}</p>`
      : html`<${Loaded} of=${jobs}>${(page) => page.total === 0 ? NO_JOBS
        : html`<${Bars} run=${run} here=${here} page=${page} overview=${overview}
          nodes=${nodes.data || {}} />`}</${Loaded}>`}</section>`;
}

// Puts each job on a line of its value's lane that is free when it starts.
function packed(jobs) {
  const lanes = new Map();  // of each value: when each of its lines is free
  for (const job of jobs) {
    if (!lanes.has(job.value)) lanes.set(job.value, []);
    const free = lanes.get(job.value);
    job.line = free.findIndex((until) => until <= job.start);
    if (job.line < 0) job.line = free.length;
    free[job.line] = job.stop;
  }
  const values = [...lanes.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  const first = new Map();
  let count = 0;
  for (const value of values) {
    first.set(value, count);
    count += lanes.get(value).length;
  }
  return { first, count };
}

function Bars({ run, here, page, overview, nodes }) {
  const at = (name) => page.names.indexOf(name), column = (row, name) => row[at(name)];
  const began = overview.began || 0, end = (overview.until || began + 1) - began;
  const from = +(here.query.from || 0), until = +(here.query.until || end) || 1;
  const span = until - from;
  const by = here.query.by || 'slots';
  const parameters = page.names.filter((_, n) => n > 2 && n < at('outcome'));
  const choices = ['slots', 'group', ...Object.keys(nodes).length ? ['node'] : [], ...parameters];
  const laneOf = (row, id) => by === 'slots' ? '' : by === 'node' ? nodes[id] || 'unknown'
    : at(by) < 0 ? '' : shown(column(row, by));
  const jobs = page.rows.filter((row) => isThere(column(row, 'started'))).map((row) => {
    const id = `${column(row, 'group')}.${column(row, 'index')}`;
    const start = column(row, 'started') - began;
    const stop = column(row, 'finished') ?? end + began;
    const state = column(row, 'outcome'), value = laneOf(row, id);
    return { id, start, stop: stop - began, state, value };
  }).sort((a, b) => a.start - b.start);
  const { first, count } = packed(jobs);
  const left = by === 'slots' ? 10 : 110;
  const size = Math.max(3, Math.min(16, 600 / Math.max(count, 1)));
  const px = (seconds) => left + (seconds - from) / span * (WIDTH - left - 10);
  const show = (low, high) => go(here, {
    from: Math.max(0, low).toPrecision(6), until: Math.min(end, high).toPrecision(6) });
  const zoom = (factor) => show(from + span * (1 - factor) / 2, until - span * (1 - factor) / 2);
  const move = (share) => {
    const low = Math.max(0, Math.min(from + span * share, end - span));
    show(low, low + span);
  };
  const button = (text, act, label) => html`
    <button type="button" aria-label=${label} onClick=${act}>${text}</button>`;
  const bar = ({ id, start, stop, state, value, line }) => {
    const x = Math.max(left, px(start));
    const words = `${id}: ${stateOf(state)[2]}, ${duration(stop - start)}`;
    return html`<a key=${id} href=${jobAddress(run, id)} aria-label=${words}>
      <rect x=${x} y=${(first.get(value) + line) * size} height=${size - 1} rx="1"
        width=${Math.max(1, Math.min(WIDTH - 10, px(stop)) - x)} fill=${stateOf(state)[0]}
        stroke=${state === 'failed' ? 'currentColor' : 'none'}><title>${words}</title></rect></a>`;
  };
  const states = ['success', 'active', 'failed', 'cancelled'];
  return html`<div class="tools">
      <${Select} label="Lines by" value=${by} names=${choices}
        set=${(name) => go(here, { by: name })} />
      ${button('Zoom in', () => zoom(0.5))} ${button('Zoom out', () => zoom(2))}
      ${button('←', () => move(-0.5), 'Earlier')} ${button('→', () => move(0.5), 'Later')}</div>
    <${Figure} role="group" title=${`When ${plural(jobs.length, 'job')} ran`}
      height=${count * size + 30}>
      ${by !== 'slots' && [...first].map(([value, line]) => html`<${Label} key=${value} end=${true}
        x=${left - 6} y=${line * size + 11} text=${short(value, 15)} />`)}
      ${jobs.filter((job) => job.stop >= from && job.start <= until).map(bar)}
      ${ticks(from, until, NARROW ? 4 : 7, TIME_STEPS).map((x) => html`<${Label} key=${x} x=${px(x)}
        y=${count * size + 20} text=${duration(x)} />`)}</${Figure}>
    <p class="legend">${states.map((name) => html`<${State} key=${name} name=${name} />`)}</p>`;
}
