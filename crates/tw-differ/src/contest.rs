//! Both servers in many cases: differences are confirmed, reduced and put into groups.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tw_testkit::temp::TempDir;

use crate::case::Case;
use crate::case_file;
use crate::compare::{Difference, compare};
use crate::excuse::{self, Excuse};
use crate::failure::Failure;
use crate::generate::{self, AREAS, Area, FILES};
use crate::group;
use crate::group::{CaseOrigin, Groups};
use crate::options::Options;
use crate::server::{Observation, Server};
use crate::shrink::shrink;

/// Time of change of every file: 1 January 2025.
const CHANGED: Duration = Duration::from_secs(1_735_689_600);
/// Reductions of differences that look alike; the others are only counted.
const REDUCED_MAX: usize = 3;

/// nginx and Tailwater, with the files that both deliver.
#[derive(Debug)]
pub(crate) struct Contest {
    nginx: Server,
    tailwater: Server,
    excuses: Vec<Excuse>,
    _root: TempDir,
}

/// Tailwater alone, with the files that it delivers.
#[derive(Debug)]
pub(crate) struct Single {
    server: Server,
    _root: TempDir,
}

impl Single {
    /// Prepares a port, an origin server and files.
    pub(crate) fn new(program: &Path) -> Result<Self, Failure> {
        let root = files()?;
        let server =
            Server::new(program, root.path()).map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Self { server, _root: root })
    }

    /// Runs a case.
    pub(crate) fn observe(&self, case: &Case) -> Result<Observation, Failure> {
        self.server.run(case).map_err(|error| error.to_string())
    }
}

/// Both observations of a case.
pub(crate) type Pair = (Observation, Observation);

impl Contest {
    /// Prepares ports, origin servers and files.
    pub(crate) fn new(nginx: &Path, tailwater: &Path) -> Result<Self, Failure> {
        let root = files()?;
        let server = |program: &Path| {
            Server::new(program, root.path()).map_err(|error| format!("{}: {error}", program.display()))
        };
        let (nginx, tailwater) = (server(nginx)?, server(tailwater)?);
        Ok(Self { nginx, tailwater, excuses: excuse::table(), _root: root })
    }

    /// Runs a case on both servers at once.
    fn observe(&self, case: &Case) -> Result<Pair, Failure> {
        let (theirs, ours) = thread::scope(|scope| {
            let theirs = scope.spawn(|| self.nginx.run(case));
            let ours = self.tailwater.run(case);
            (theirs.join(), ours)
        });
        let theirs = theirs.map_err(|_| "the thread of nginx panicked".to_owned())?;
        Ok((theirs.map_err(|error| error.to_string())?, ours.map_err(|error| error.to_string())?))
    }

    /// Differences without an excuse, and the number of those with one.
    fn differences(&self, case: &Case) -> Result<(Vec<Difference>, usize), Failure> {
        if !case.listens() {
            return Ok((Vec::new(), 0));
        }
        Ok(self.unexcused(&self.observe(case)?, case))
    }

    /// Observation of nginx, if both servers agree twice about the case, without or with an excuse.
    pub(crate) fn agreed(&self, case: &Case) -> Result<Option<Observation>, Failure> {
        let first = self.observe(case)?;
        let again = self.observe(case)?;
        let is_stable = compare(&first.0, &again.0).is_empty();
        let agrees = |pair: &Pair| self.unexcused(pair, case).0.is_empty();
        Ok((is_stable && agrees(&first) && agrees(&again)).then_some(first.0))
    }

    /// Runs many cases, and writes the groups of differences.
    pub(crate) fn run(&self, options: &Options, dir: &Path) -> Result<(), Failure> {
        let began = Instant::now();
        let mut groups = Groups::new(dir)?;
        let (mut comparisons, mut excused_count, mut refused) = (0, 0, 0);
        for index in 0..options.cases {
            if began.elapsed() > options.time {
                println!("differ: the time is over after {index} cases");
                break;
            }
            let seed = options.seed.wrapping_add(index);
            let turn = usize::try_from(index).unwrap_or(0) % AREAS.len();
            let area =
                options.area.or_else(|| AREAS.get(turn).map(|(_, area)| *area)).unwrap_or(Area::Routing);
            let case = generate::case(seed, area);
            let pair = self.observe(&case)?;
            refused += usize::from(pair.0.refusal.is_some());
            comparisons += pair.0.answers.len().max(1);
            let (differences, excused) = self.unexcused(&pair, &case);
            excused_count += excused;
            self.group(&case, differences, CaseOrigin { seed, area }, options.budget, &mut groups)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "differ: {comparisons} comparisons in {} cases of seed {} ({refused} refused by nginx), {excused_count} excused differences, {} groups without excuse, {seconds:.0} s",
            options.cases,
            options.seed,
            groups.count()
        );
        if groups.count() == 0 {
            Ok(())
        } else {
            Err(format!("{} groups are in {}", groups.count(), dir.display()))
        }
    }

    fn unexcused(&self, pair: &Pair, case: &Case) -> (Vec<Difference>, usize) {
        let all = compare(&pair.0, &pair.1);
        let count = all.len();
        let is_left =
            |difference: &Difference| !self.excuses.iter().any(|excuse| excuse.applies(difference, case));
        let differences: Vec<Difference> = all.into_iter().filter(is_left).collect();
        let excused = count - differences.len();
        (differences, excused)
    }

    /// Confirms, reduces and groups the differences of one case.
    fn group(
        &self,
        case: &Case,
        differences: Vec<Difference>,
        origin: CaseOrigin,
        budget: usize,
        groups: &mut Groups,
    ) -> Result<(), Failure> {
        if differences.is_empty() {
            return Ok(());
        }
        // Only what repeats is a difference of the servers, and not of the moment.
        let (again, _) = self.differences(case)?;
        let mut exchanges = Vec::new();
        for difference in differences {
            let repeats = again
                .iter()
                .any(|other| other.kind == difference.kind && other.exchange == difference.exchange);
            // The first difference of an exchange mostly explains the others.
            if !repeats || exchanges.contains(&difference.exchange) {
                continue;
            }
            exchanges.push(difference.exchange);
            let key = group::key(&difference);
            if groups.reductions(&key) >= REDUCED_MAX {
                groups.count_again(&key);
                continue;
            }
            let mut failure = None;
            let small =
                shrink(case, difference.exchange, budget, |candidate| match self.differences(candidate) {
                    Ok((left_differences, _)) => {
                        left_differences.iter().any(|other| group::key(other) == key)
                    }
                    Err(error) => {
                        failure = Some(error);
                        false
                    }
                });
            if let Some(failure) = failure {
                return Err(failure);
            }
            let pair = self.observe(&small)?;
            let signature = groups.add(&key, &small, &pair, origin)?;
            if let Some(signature) = signature {
                println!("differ: seed {}: {signature}", origin.seed);
            }
        }
        Ok(())
    }

    /// Reduces the case of a file further, and writes it back with a report beside it.
    pub(crate) fn minimise(&self, file: &Path, budget: usize) -> Result<(), Failure> {
        let failure = |error: std::io::Error| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(failure)?;
        let case = case_file::read(&case_file::lines(&text)?)?;
        let (differences, _) = self.differences(&case)?;
        let Some(first) = differences.first() else {
            return Err("both servers agree about this case".to_owned());
        };
        let key = group::key(first);
        let mut error = None;
        let small = shrink(&case, first.exchange, budget, |candidate| {
            let outcome = self.differences(candidate).map_err(|failed| error = Some(failed));
            outcome.is_ok_and(|(differences, _)| differences.iter().any(|other| group::key(other) == key))
        });
        if let Some(error) = error {
            return Err(error);
        }
        fs::write(file, case_file::write(&small)).map_err(failure)?;
        println!("{}", group::describe(&key, &small, &self.observe(&small)?, "A file."));
        Ok(())
    }

    /// Runs the case of a file and prints everything about it.
    pub(crate) fn replay_file(&self, file: &Path) -> Result<(), Failure> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        self.replay_case(&case_file::read(&case_file::lines(&text)?)?, &file.display().to_string())
    }

    /// Runs the case of a seed and prints everything about it.
    pub(crate) fn replay(&self, seed: u64, area: Option<Area>) -> Result<(), Failure> {
        self.replay_case(&generate::case(seed, area.unwrap_or(Area::Routing)), &format!("seed {seed}"))
    }

    fn replay_case(&self, case: &Case, name: &str) -> Result<(), Failure> {
        println!("{}", case.configuration());
        let pair = self.observe(case)?;
        let (differences, excused) = self.unexcused(&pair, case);
        for Difference { kind, exchange, nginx, tailwater } in &differences {
            let request =
                case.exchanges.get(*exchange).map(crate::request::Exchange::bytes).unwrap_or_default();
            println!(
                "--- {kind}, exchange {exchange}\n{request}\nnginx:     {nginx}\ntailwater: {tailwater}"
            );
        }
        println!("differ: {} differences without excuse, {excused} excused", differences.len());
        if differences.is_empty() { Ok(()) } else { Err(format!("{name} differs")) }
    }
}

/// A directory with the files that servers deliver.
fn files() -> Result<TempDir, Failure> {
    let root = TempDir::new("differ-files").map_err(|error| error.to_string())?;
    write_files(root.path()).map_err(|error| format!("cannot write files: {error}"))?;
    Ok(root)
}

fn write_files(root: &Path) -> std::io::Result<()> {
    for (name, content) in FILES {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, content)?;
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + CHANGED);
        File::options().write(true).open(&path)?.set_times(times)?;
    }
    Ok(())
}
