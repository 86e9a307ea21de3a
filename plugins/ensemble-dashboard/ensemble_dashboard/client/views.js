// Views: what went wrong, what it cost, what the rules did, what jobs there are.
'use strict';

// Jobs of which each has a mark or a bar in a chart, at most.
const MOST_MARKS = 2000;
const jobsOf = ({ groups }) => sum(groups.map((group) => group.submitted - group.repeated));
const RESUMED = ['stopped', 'limited', 'interrupted'];

function Header({ overview, now }) {
  const { state, controller, groups, newest, reason, exit_code: code, problem, began } = overview;
  const all = (name) => number(sum(groups.map((group) => group[name])));
  const quiet = now - (newest || now);
  const { host, pid } = controller;
  const who = host ? `controlled by process ${pid} on ${host}; ` : '';
  const last = quiet > 60 ? html`<strong>quiet for ${duration(quiet)}</strong>`
    : quiet < 2 ? 'last event just now' : `last event ${duration(Math.round(quiet))} ago`;
  const about = state === 'running'
    ? html`${who}${last}: ${all('running')} running, ${all('waiting')} waiting${
      groups.some((group) => group.suspended) ? `, ${all('suspended')} suspended` : ''}`
    : state === 'interrupted'
      ? 'the controller was killed or lost; jobs in the queue were left as they were'
      : `${reason}${isThere(code) ? `, exit code ${code}` : ''}`;
  return html`<header class="run"><h1>${overview.tag}</h1>
    <p><strong class=${`run-state ${state}`}>${state}</strong> ${about}</p>
    <p class="quiet">${overview.executor && `on ${overview.executor}, `}began ${time(began)} UTC
      ${newest ? `, ${duration(newest - began)} to the last event` : ''},
      ${' '}${plural(overview.events, 'event')}</p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${overview.warnings.map((text) => html`<p class="problem" key=${text}>${text}</p>`)}</header>`;
}

// The states of a group's attempts, with their numbers.
function partsOf(group) {
  const lost = group.causes.lost || 0;
  return [['success', group.success], ['running', group.running],
    ['suspended', group.suspended || 0],
    ['waiting', group.waiting - group.held], ['held', group.held], ['failed', group.failed - lost],
    ['lost', lost], ['cancelled', group.cancelled]];
}

function Overview({ run, overview }) {
  const { progress, groups, rules, state } = overview;
  const failed = sum(groups.map((group) => group.failed));
  const lost = sum(groups.map((group) => group.lost));
  const others = sum(groups.map((group) => sum(Object.values(group.cancelled_by || {}))));
  const never = rules.filter((rule) => !rule.fired);
  const live = state === 'running';
  const about = (group) => [
    plural(group.submitted - group.repeated, 'job'),
    group.repeated ? ` in ${number(group.submitted)} attempts` : '',
    group.mean_duration !== null ? `, mean ${duration(group.mean_duration)}` : '',
  ].join('');
  const far = ({ done, planned, open, to_go: left, held, holding }) => [
    `${number(done)} of ${plural(planned, 'job')} are over`,
    open ? ', and rules may add more.' : '.',
    isThere(left) && live ? ` About ${duration(left)} left.` : '',
    held ? ` ${plural(held, 'job')} held` : '',
    held ? `${holding.length ? ` by the limit ${holding.join(', ')}` : ''}.` : '',
  ].join('');
  const spent = ({ used, limits }) => ['core_hours', 'gpu_hours']
    .filter((name) => used[name] > 0 || isThere(limits[name]))
    .map((name) => `${number(used[name] || 0)} ${isThere(limits[name])
      ? `of ${number(limits[name])} ` : ''}${name.replace('_', '-')} used.`).join(' ');
  return html`<section><h2>Progress</h2>
    ${progress && html`<p>${far(progress)}${' '}
      <a href=${address(run, 'costs')}>${spent(progress)}</a></p>`}
    ${groups.map((group) => html`<div class="group" key=${group.name}>
      <h3><a href=${jobsAddress(run, { group: group.name })}>${group.name}</a>${' '}
        <span class="quiet">${about(group)}</span></h3>
      <${Bar} parts=${partsOf(group)} /></div>`)}
    ${!groups.length && html`<p class="quiet">Nothing is known of this run's groups.</p>`}
    <h2>Attention</h2><ul>
      ${failed > 0 && html`<li>
        <a href=${address(run, 'failures')}>${plural(lost, 'job')} failed</a>
        ${failed > lost ? `, of ${plural(failed, 'failed attempt')}` : ''}</li>`}
      ${others > 0 && html`<li><a href=${address(run, 'failures')}>${plural(others, 'job')}
        ${' '}${others > 1 ? 'were' : 'was'} cancelled by others</a></li>`}
      ${never.length > 0 && html`<li>
        <a href=${address(run, 'rules')}>${plural(never.length, 'rule')} never fired</a></li>`}
      ${!failed && !others && !never.length
        && html`<li>Nothing: no job failed, and every rule fired.</li>`}</ul>
    ${live && html`<h2>Commands</h2><p>This page only shows. To act, copy a command:</p>
      ${['stop RUN', 'cancel RUN GROUP', 'why RUN RULE'].map((words) => html`
        <${Command} key=${words} text=${command(words, overview)} />`)}`}
    ${RESUMED.includes(state) && html`<h2>Commands</h2><p>This run can go on:</p>
      <${Command} text=${command('resume RUN', overview)} />`}</section>`;
}

// -- what went wrong ------------------------------------------------------------------------------

// The filter for jobs that failed in one way.
function ofKind({ group, outcome, cause, exit_code, cancelled_by }, more) {
  const known = Object.entries({ group, outcome, cause, exit_code, cancelled_by });
  return { ...Object.fromEntries(known.filter(([, value]) => isThere(value))), ...more };
}
// "T = 2.3 and L = 8: 31 of 33 failed", with a link to these jobs.
function Suspect({ run, kind, one }) {
  const values = { [one.name]: one.value, ...one.with };
  const words = Object.entries(values).map(([name, value]) => `${name} = ${shown(value)}`);
  return html`<li><a href=${jobsAddress(run, ofKind(kind, values))}>${words.join(' and ')}</a>:
    ${' '}${number(one.failed)} of ${number(one.total)} failed
    ${' '}(${percent(one.failed / kind.count)} of these failures)</li>`;
}
// Without single values whose failures are nearly all those of a pair with this value.
const suspects = (all) => all.filter((one) => one.with || !all.some((pair) => pair.with
  && { [pair.name]: pair.value, ...pair.with }[one.name] === one.value
  && pair.failed > 0.9 * one.failed));

function Kind({ run, kind }) {
  const { examples, looked } = kind;
  const streamOf = (line) => examples.find((each) => each.line === line).stream;
  const named = (each) => html`<a key=${each.id} href=${jobAddress(run, each.id)}>${each.id}</a>`;
  return html`<article class="card">
    <h3><${State} name=${kind.outcome} />: ${number(kind.count)} of ${plural(kind.of, 'job')} of
      ${' '}${kind.group}</h3>
    <p>Cause <strong>${kind.cause || 'unknown'}</strong>${isThere(kind.cancelled_by)
      && html` by <strong>${kind.cancelled_by}</strong>`}
      ${isThere(kind.exit_code) && html`, exit code <strong>${kind.exit_code}</strong>`}.${' '}
      <a href=${jobsAddress(run, ofKind(kind))}>Show these jobs</a></p>
    ${kind.parameters.length > 0 && html`<h4>More often than others at</h4>
      <ul>${suspects(kind.parameters).map((one, n) => html`
        <${Suspect} key=${n} run=${run} kind=${kind} one=${one} />`)}</ul>`}
    ${looked > 0 && html`<h4>Last line of output of ${plural(looked, 'job')}</h4>
      <ul>${kind.lines.map(({ line, count }) => html`<li key=${line}>
        ${line && html`<span class="quiet">${streamOf(line)}: </span>`}
        ${line ? html`<code>${clean(line)}</code>` : html`<span class="quiet">nothing</span>`}
        ${count > 1 ? html`<span class="quiet"> ${number(count)} times</span>` : ''}</li>`)}</ul>`}
    ${kind.nodes.length > 0 && kind.nodes[0].count > looked / 4 && html`
      <h4>Nodes of ${plural(looked, 'job')}</h4>
      <p>${kind.nodes.map(({ node, count }) => `${node} (${count})`).join(', ')}
        ${sum(kind.nodes.map(({ count }) => count)) < looked ? ' and others' : ''}</p>`}
    <h4>${examples.length < kind.count ? `${examples.length} of them` : 'Jobs'}</h4>
    <p>${examples.map((each) => html`${named(each)} `)}</p></article>`;
}

function Failures({ run, seq }) {
  const found = useData(run, 'failures', {}, seq);
  return html`<section><h2>Failures</h2><${Loaded} of=${found}>${(kinds) => kinds.length
    ? kinds.map((kind, n) => html`<${Kind} key=${n} run=${run} kind=${kind} />`)
    : html`<p>No job failed.</p>`}</${Loaded}></section>`;
}

// -- what it cost ---------------------------------------------------------------------------------

const COST_NAMES = ['group', 'core-hours', 'failed core-hours', 'failed share', 'median time',
  'longest time', 'time limit', 'median wait'];
const COST_FORMATS = { 'failed share': percent, 'median time': duration, 'longest time': duration,
  'time limit': duration, 'median wait': duration };

function costRow(group) {
  const hours = sum(Object.values(group.core_hours));
  const failed = group.core_hours.failed;
  const took = group.duration || {};
  return [group.group, hours, failed || null, failed ? failed / hours : null, took.median,
    took.longest, group.time_limit, group.waiting && group.waiting.median];
}

// Names and rows of a table without the columns that have no value.
function withoutEmpty(names, rows) {
  const used = names.map((_, at) => rows.some((row) => isThere(row[at]) && row[at] !== ''));
  return [names, ...rows].map((row) => row.filter((_, at) => used[at]));
}

function Totals({ progress, capacity }) {
  const { used, committed, limits } = progress;
  // The queue's report is of its cores, nodes and GPUs; that of jobs, of their hours.
  const idle = ({ up, free }) => up > 0 ? percent(free / up) : null;
  const all = Object.keys({ ...used, ...limits })
    .filter((name) => isThere(limits[name])
      || (used[name] && !(name === 'node_hours' && used.core_hours === used.node_hours)))
    .map((name) => [name.replace('_', '-'), used[name], committed[name], limits[name],
      idle(capacity[`${name.replace('_hours', '')}s`] || {})]);
  const [names, ...rows] = withoutEmpty(
    ['of the run', 'used', 'committed', 'limit', 'idle share'], all);
  const one = (value, n) => n === 0 ? html`<th scope="row">${value}</th>`
    : html`<td class="number">${isThere(value) ? number(value) : '–'}</td>`;
  return html`<${Scrolled} label="Totals"><thead><tr>${names.map((name, n) => html`
      <th scope="col" class=${n ? 'number' : ''}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row[0]}>${row.map(one)}</tr>`)}</tbody></${Scrolled}>
    <p class="quiet">${names.includes('idle share')
      ? 'Idle share: of all cores, nodes or GPUs that the queue reported, those that were free.'
      : 'This queue reports no free cores.'}</p>`;
}

function Costs({ run, here, overview, seq }) {
  const found = useData(run, 'costs', {}, seq), capacity = useData(run, 'capacity', {}, seq);
  return html`<section><h2>Costs</h2>
    ${overview.progress && html`
      <${Totals} progress=${overview.progress} capacity=${capacity.data || {}} />`}
    <${Loaded} of=${found}>${(groups) => {
      const [names, ...rows] = withoutEmpty(COST_NAMES, groups.map(costRow));
      return html`<${Table} id="costs" here=${here} caption="Costs of each group" rows=${rows}
        formats=${COST_FORMATS} names=${names} />`;
    }}</${Loaded}></section>`;
}

// -- pilots: jobs of the queue inside which jobs of the run run -----------------------------------

const PILOT_NAMES = ['pilot', 'kind', 'state', 'job in the queue', 'cores', 'waited', 'lasted',
  'core-hours', 'core-hours used', 'used share', 'nodes', 'why it ended'];
const PILOT_FORMATS = { waited: duration, lasted: duration, 'used share': percent };
const usedShare = ({ core_hours: given, used_core_hours: used }) =>
  given ? Math.min(1, used / given) : 0;

// A line for each of the last 60 pilots: how long it waited, was there, and how much was used.
function PilotLines({ pilots, began, until }) {
  const left = 60, size = 16, end = Math.max(1, until - began);
  const px = (at) => left + Math.max(0, Math.min(1, (at - began) / end)) * (WIDTH - left - 10);
  const part = (name, from, to, y, high, words) => to > from && html`<rect x=${px(from)} y=${y}
    height=${high} width=${Math.max(1, px(to) - px(from))} fill=${stateOf(name)[0]}>
    <title>${words}, ${duration(to - from)}</title></rect>`;
  const line = (each, n) => {
    const y = n * size + 2, stop = each.ended ?? until, start = each.began ?? stop;
    const ready = each.ready ?? stop, share = usedShare(each), name = `pilot ${each.pilot}`;
    const words = `${name}: ready, ${percent(share)} used by jobs`;
    return html`<g key=${name}><${Label} x=${left - 6} y=${y + 10} text=${name} end=${true} />
      ${part('waiting', each.requested, start, y + 2, 6, `${name}: waited`)}
      ${part('starting', start, ready, y, 10, `${name}: started`)}
      ${part('unused', ready, stop, y, 10, words)}
      ${part('used', ready, stop, y + 10 * (1 - share), 10 * share, words)}</g>`;
  };
  return html`<${Figure} title="When pilots waited and were there"
    height=${pilots.length * size + 26}>${pilots.map(line)}
    ${ticks(0, end, NARROW ? 4 : 7, TIME_STEPS).map((x) => html`<${Label} key=${x}
      x=${px(began + x)} y=${pilots.length * size + 18} text=${duration(x)} />`)}</${Figure}>
    <p class="legend">${['waiting', 'starting', 'used', 'unused'].map((name) => html`
      <${State} key=${name} name=${name} />`)}</p>`;
}

function Pilots({ run, here, overview, seq }) {
  const { state, began = 0, until } = overview, live = state === 'running';
  const found = useData(run, 'queue', {}, `${seq} ${live ? Math.floor(until / 5) : ''}`);
  return html`<section><h2>Pilots</h2><${Loaded} of=${found}>${(queue) => {
    const pilots = queue.pilots || [], share = usedShare(queue), hours = queue.core_hours || 0;
    const states = ['waiting', 'starting', 'ready', 'draining', 'ended']
      .map((name) => [name, pilots.filter((each) => each.state === name).length]);
    const [names, ...rows] = withoutEmpty(PILOT_NAMES, pilots.map((each) => [
      each.pilot, each.kind, each.state, each.queue_id, each.cores,
      (each.began ?? each.ended ?? until) - each.requested,
      isThere(each.began) ? (each.ended ?? until) - each.began : null, each.core_hours,
      each.used_core_hours, usedShare(each), each.hosts.join(' '), each.why]));
    return html`<p>${plural(pilots.length, 'pilot')} requested so far.</p>
      <${Bar} parts=${states} />
      ${live && queue.none_requested && html`
        <p>No other pilot is requested: ${queue.none_requested}.</p>`}
      ${hours > 0 && html`<p>Jobs used ${number(+(hours * share).toPrecision(3))} of the
        ${' '}${number(+hours.toPrecision(3))} core-hours of pilots (${percent(share)});
        ${' '}${number(+(hours * (1 - share)).toPrecision(3))} were unused.
        ${' '}<span class="quiet">Counted every few seconds.</span></p>`}
      ${pilots.length > 0 && html`
        <${PilotLines} pilots=${pilots.slice(-60)} began=${began} until=${until} />
        <${Table} id="pilots" here=${here} caption="Pilots" formats=${PILOT_FORMATS}
          names=${names} rows=${rows} />`}`;
  }}</${Loaded}></section>`;
}

// -- what the rules did ---------------------------------------------------------------------------

// Marks that would hide each other are left out of a lane.
const drawn = (firings) => firings.length <= 400 ? firings
  : firings.filter((_, n) => n % Math.ceil(firings.length / 400) === 0);

// A line for each rule, with a mark for each firing.
function Lanes({ lanes, began, span }) {
  const height = 30 * lanes.length + 34, left = NARROW ? 100 : 130;
  const px = (seconds) => left + 4 + seconds / span * (WIDTH - left - 20);
  const told = (each) => `${duration(each.time - began)}: ${each.event}`
    + `${each.value === null ? '' : `, value ${number(each.value)}`}: ${each.decisions.join(', ')}`;
  const lane = ([name, firings], n) => html`<g key=${name}>
    <${Label} x=${left - 8} y=${30 * n + 24} text=${short(name, NARROW ? 13 : 18)} end=${true} />
    <line x1=${left} x2=${WIDTH - 10} y1=${30 * n + 20} y2=${30 * n + 20} stroke="currentColor"
      stroke-opacity="0.2" />
    ${drawn(firings).map((each) => html`<path key=${each.firing} stroke=${SERIES[n % 6]}
      d=${marks[n % 7](px(each.time - began), 30 * n + 20)} fill=${SERIES[n % 6]}>
      <title>${told(each)}</title></path>`)}</g>`;
  return html`<${Figure} title="Firings of each rule over time" height=${height}>${lanes.map(lane)}
    ${ticks(0, span, NARROW ? 3 : 6, TIME_STEPS).map((at) => html`
      <${Label} key=${at} x=${px(at)} y=${height - 8} text=${duration(at)} />`)}</${Figure}>`;
}

const FIRING_NAMES = ['event', 'time', 'rule', 'what happened', 'value', 'for', 'decisions'];

function Firings({ here, overview, firings }) {
  const all = sum(overview.rules.map((rule) => rule.fired));
  const each = ({ each: names }) => Object.entries(names)
    .map(([name, value]) => `${name}=${shown(value)}`).join(' ');
  const [names, ...rows] = withoutEmpty(FIRING_NAMES, firings.map((one) => [
    one.seq, one.time - (overview.began || 0), one.rule, one.event, one.value, each(one),
    one.decisions.join(', ')]));
  return html`<h3>Firings</h3>
    ${all > firings.length && html`<p class="quiet">${number(firings.length)} of
      ${' '}${plural(all, 'firing')}: of rules that fired very often, some are left out.
      "ensemble events" has each.</p>`}
    <${Table} id="firings" here=${here} caption="Firings" formats=${{ time: duration }}
      names=${names} rows=${rows} />`;
}

// What a rule waits for and does: "job-fail (sim) when attempt < 3 → submit sim".
function ruleWords({ label, when, checks, lasts, spec }) {
  const words = (action) => typeof action === 'string' ? action
    : Object.entries(action).map(([name, value]) => ['name', 'label'].includes(name) ? shown(value)
      : `${name}=${shown(value)}`).join(' ');
  const does = [spec.action || []].flat().map(words).join(', ');
  const becomes = spec.crosses === undefined ? ''
    : spec.at_first ? ' becomes true, or is true at first' : ' becomes true';
  const count = checks > 1 ? ` at ${checks} checks in a row` : '';
  const time = lasts ? ` for ${duration(lasts)}` : count;
  return `${label}${when ? ` when ${when}${becomes}${time}` : ''}${does ? ` → ${does}` : ''}`;
}

function Rules({ run, here, overview, seq }) {
  const found = useData(run, 'firings', {}, seq), reasons = useData(run, 'reasons', {}, seq);
  const why = ({ id, reason }) => (reasons.data || {})[id] || `It never fired: ${reason}`;
  const began = overview.began || 0, span = Math.max((overview.newest || began) - began, 1e-3);
  return html`<section><h2>Rules</h2><${Loaded} of=${found}>${(firings) => {
    const lanes = new Map(overview.rules.map((rule) => [rule.id, []]));
    for (const each of firings) {
      if (!lanes.has(each.rule)) lanes.set(each.rule, []);
      lanes.get(each.rule).push(each);
    }
    const fired = [...lanes].filter(([, own]) => own.length);
    // Of a damaged run, firings may be known that the engine's state has not.
    const isNever = (rule) => !rule.fired && !lanes.get(rule.id).length;
    const rules = [...overview.rules].sort((a, b) => isNever(b) - isNever(a));
    return html`<dl>${rules.map((rule) => html`
        <div key=${rule.id}><dt>${rule.id} <span class="quiet">${ruleWords(rule)}</span></dt>
          <dd>${isNever(rule) ? html`${why(rule)}
            <${Command} text=${command(`why RUN ${rule.id}`, overview)} />`
            : `It fired ${rule.fired === 1 ? 'once' : plural(rule.fired, 'time')}.`}</dd>
        </div>`)}</dl>
      ${new Set(firings.map(({ seq: at }) => at)).size > 1 && html`
        <${Lanes} lanes=${fired} began=${began} span=${span} />`}
      <${Firings} here=${here} overview=${overview} firings=${firings} />`;
  }}</${Loaded}></section>`;
}

// -- what jobs there are --------------------------------------------------------------------------

function Jobs({ run, here, seq }) {
  const { sort = '', desc = '', text = '', where = '{}', page = '' } = here.query;
  const asked = { sort, descending: desc, text, where };
  const found = useData(run, 'jobs', { ...asked, offset: 100 * +page, limit: 100 }, seq);
  const confines = Object.entries(JSON.parse(where));
  // Shown until the next page is there, so that the filter keeps the focus.
  const last = useRef();
  last.current = found.data || last.current;
  const set = (query) => {
    const [, name, value] = /^\s*([^=]*?)\s*=\s*(.*?)\s*$/.exec(query.text || '') || [];
    if (!last.current.names.includes(name)) return go(here, query);
    const more = JSON.stringify({ ...JSON.parse(where), [name]: value });
    return go(here, { ...query, text: '', where: more });
  };
  const without = (name) => {
    const rest = Object.fromEntries(confines.filter(([other]) => other !== name));
    go(here, { where: JSON.stringify(rest), page: '' });
  };
  const every = async () => (await source.get(run, 'jobs', { ...asked, limit: 1000000 })).data.rows;
  return html`<section><h2>Jobs</h2>
    ${source.left && html`<p class="problem">${source.left}</p>`}
    ${confines.length > 0 && html`<p class="tools">Only ${confines.map(([name, value]) => html`
      <button key=${name} type="button" onClick=${() => without(name)}
        aria-label=${`Show others than ${name} = ${shown(value)} too`}>
        ${name} = ${shown(value)} ✕</button>`)}</p>`}
    <${Loaded} of=${found.error ? found : { data: last.current }}>${(data) => {
      const own = [data.names.indexOf('group'), data.names.indexOf('index')];
      const link = (row) => jobAddress(run, `${row[own[0]]}.${row[own[1]]}`);
      return html`<${Grid} caption="Jobs" names=${data.names} rows=${data.rows} total=${data.total}
        offset=${data.offset} sort=${sort} descending=${desc} text=${text}
        links=${{ group: link, index: link }} every=${every} set=${set}
        hidden=${['submitted', 'finished']} hint="part of a value, or NAME=VALUE" />`;
    }}</${Loaded}></section>`;
}

function Job({ run, here, seq }) {
  const id = here.query.id || '', at = id.lastIndexOf('.');
  const found = useData(run, 'job', { group: id.slice(0, at), index: id.slice(at + 1) }, seq);
  return html`<section><p><a href=${address(run, 'jobs')}>All jobs</a></p><h2>${id}</h2>
    <${Loaded} of=${found}>${(job) => html`
      <${JobFacts} run=${run} here=${here} job=${job} seq=${seq} />`}</${Loaded}></section>`;
}

function JobFacts({ run, here, job, seq }) {
  const { id, row, attempts, rules, values, events, left } = job;
  const variables = [...new Set(values.flatMap(([, some]) => Object.keys(some)))];
  const newest = row.attempts > 1 ? `${id}-${row.attempts - 1}` : id;
  const start = values.length ? values[0][0] : 0;
  const curve = (name) => values.filter(([, some]) => typeof some[name] === 'number')
    .map(([when, some]) => [when - start, some[name]]);
  const node = events.map(({ context }) => context.host || context.nodes).filter(isThere).pop();
  const { group, index, outcome, cause, exit_code: code, ...others } = row;
  const facts = Object.entries({ ...others, node }).filter(([, value]) => isThere(value));
  // The status that the system reports is the exit code in another form.
  const context = ({ context: { status, ...rest } }) => Object.keys(rest).length
    ? JSON.stringify(rest) : '';
  const fact = ([name, value]) => html`<tr key=${name}><th scope="row">${name}</th>
    <td>${typeof value === 'object' ? JSON.stringify(value) : cell(name, value)}</td></tr>`;
  return html`<p><${State} name=${row.outcome} />${row.cause && ` (${row.cause}`
      + `${isThere(row.exit_code) ? `, exit code ${row.exit_code}` : ''})`}</p>
    ${left && html`<p class="quiet">${left}</p>`}
    ${['stderr', 'stdout'].map((stream) => html`
      <${Log} key=${stream} run=${run} job=${newest} stream=${stream} seq=${seq} />`)}
    ${attempts.map((each) => html`<article class="card" key=${each.id}>
      <h3>Command${attempts.length > 1 ? ` of ${each.id}` : ''}</h3>
      <pre>${each.command.map(quoted).join(' ')}</pre>
      <p class="quiet">${each.workdir ? `in ${each.workdir}` : ''}</p></article>`)}
    ${rules.length > 0 && html`<h3>Rules that touched it</h3><ul>${rules.map((each, n) => html`
      <li key=${n}>${each.rule}: ${each.decision}
        <span class="quiet"> at event ${each.seq}</span></li>`)}</ul>`}
    ${variables.map((name) => html`<${Chart} key=${name} title=${`${name} of ${id}`} times=${true}
      xName="time since its first value" yName=${name}
      series=${[{ name, line: true, points: curve(name) }]} />`)}
    <h3>Values</h3>
    <${Scrolled} label="The job's row"><tbody>${facts.map(fact)}</tbody></${Scrolled}>
    ${events.length > 0 && html`<h3>Events</h3><${Table} id="events" here=${here} caption="Events"
      names=${['event', 'at', 'job', 'name', 'context']}
      rows=${events.filter(({ name }) => name !== 'clean').map((each) => [
        each.seq, time(each.time), each.job, each.name || each.type, context(each)])} />`}`;
}

function Log({ run, job, stream, seq }) {
  const found = useData(run, 'log', { job, stream }, seq);
  const cut = (line) => line.length > 2000
    ? `${line.slice(0, 2000)} … (${number(line.length)} characters)` : line;
  return html`<h3>Output (${stream})</h3>
    <${Loaded} of=${found}>${(log) => log.text
      ? html`<pre tabindex="0" aria-label=${stream}>${
          clean(log.text).split('\n').map(cut).join('\n')}</pre>
        ${log.size > log.text.length && html`
          <p class="quiet">The end of ${number(log.size)} bytes.</p>`}`
      : html`<p class="quiet">${log.problem || 'It is empty.'}</p>`}</${Loaded}>`;
}
