// The page of a run, in a report (data in the page) and in a dashboard (data fetched).
'use strict';

const VIEWS = {
  overview: ['Overview', Overview], failures: ['Failures', Failures], costs: ['Costs', Costs],
  pilots: ['Pilots', Pilots], results: ['Results', Results], rules: ['Rules', Rules],
  timeline: ['Timeline', Timeline],
  jobs: ['Jobs', Jobs], job: [null, Job],
};
const NAMED = Object.entries(VIEWS).filter(([, [label]]) => label);
const isShown = (view, overview) => view !== 'pilots' || (overview && overview.has_pilots);

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
      setProblem('');
      setOverview(data);
      setNow(source.live ? Date.now() / 1000 : source.made);
      if (source.live) timer = setTimeout(again, data.state === 'running' ? 1000 : 5000);
    }, (error) => {
      if (!wanted) return;
      setProblem(error.message);
      timer = setTimeout(again, 5000);
    });
    const again = () => whenShown(() => wanted && look());
    if (run) look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [run]);
  useEffect(() => { document.title = `${run ? `${run} – ` : ''}Ensemble`; }, [run]);
  const [, View] = own(VIEWS, here.view) || VIEWS.overview;
  const choose = (event) => { location.hash = address(event.target.value, 'overview'); };
  const skip = (event) => {
    event.preventDefault();
    document.getElementById('main').focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>To the content</a>
    <nav class="views" aria-label="Views"><span class="brand">Ensemble</span>
      ${runs.length > 1 && html`<label><span class="hidden">Run</span>
        <select value=${run} onChange=${choose}>${runs.map((tag) => html`
          <option key=${tag} value=${tag} selected=${tag === run}>${tag}</option>`)}
        </select></label>`}
      ${NAMED.filter(([name]) => isShown(name, overview)).map(([name, [label]]) => html`
        <a key=${name} href=${address(run, name)}
          aria-current=${here.view === name ? 'page' : undefined}>${label}</a>`)}</nav>
    <main id="main" class=${here.view} tabindex="-1">
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      ${overview && overview.tag === run ? html`<${Header} overview=${overview} now=${now} />
          <${View} run=${run} here=${{ ...here, run }} overview=${overview}
            seq=${overview.events} />`
        : !problem && html`<p class="quiet" role="status">reading …</p>`}</main>
    <footer class="quiet">
      ${source.live ? 'Read-only; updated while it is shown.'
        : `Report of ${time(source.made)} UTC.`}
      ${' '}Times are UTC.</footer>`;
}

render(html`<${App} />`, document.getElementById('app'));
