//! The differential test: the kernel against the meaning of the policy language.
//!
//! Random trees under random rules, in zones of one workspace. A member of a session performs random
//! operations; a bystander performs the same on a copy, so that the errors of the kernel itself are
//! known. What the reference allows must end as it did for the bystander, what it denies must be
//! refused and an event must give the reference's rule for it, and in the end both trees must be the
//! same.

mod generate;
mod hand;
mod member;
mod model;
mod operation;
mod recipe;
mod reference;
mod round;
mod rules;
mod shrink;
mod told;
mod twin;

pub(crate) use member::serve;
pub(crate) use reference::resolved;

use crate::harness::{Ground, trial};
use anyhow::{Context as _, bail, ensure};
use fastrand::Rng;
use libtest_mimic::Trial;
use model::Model;
use operation::{Action, Op};
use round::{Case, Counts, Round};
use rules::{Language, Line};
use sandbox_userspace::engine::LSM_HOOKS;
use std::process::ExitCode;

/// Zones in one session.
const ZONES: usize = 40;
/// Operations in one session.
const OPERATIONS: u64 = 20_000;
/// What the suite does, the same each time.
const USUAL: (u64, u64) = (2026, 100_000);

const NAME: &str = "differential::kernel_does_what_the_reference_says";

/// Rows of the coverage table that random operations try.
pub(crate) const ROWS: &[(&str, &str)] = &[
    ("D6.101", "differential::kernel_does_what_the_reference_says"),
    ("A13", NAME),
    ("A15", NAME),
    ("A20", NAME),
    ("A21", NAME),
    ("A26", NAME),
    ("A36", NAME),
    ("D1.8", NAME),
    ("D1.11", NAME),
    ("D1.12", NAME),
    ("D2.31", NAME),
    ("D2.37", NAME),
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("differential::a_wrong_verdict_is_found", || misled().map(drop)),
        // Some twenty sessions.
        trial("differential::a_wrong_verdict_is_made_small", small).with_ignored_flag(true),
        trial(NAME, || {
            let (seed, operations) = USUAL;
            let counts = run(seed, operations, 0)?;
            println!("{counts}");
            ensure!(counts.total() >= operations, "too few operations were judged: {counts}");
            let ground = Ground::new("attributes")?;
            let lacking = counts.lacking(operation::attributes_are_kept(ground.outside().path()));
            ensure!(lacking.is_empty(), "{lacking:?} were never both allowed and denied: {counts}");
            Ok(())
        }),
    ]
}

/// Where the kernel is told less than the reference, that is found.
fn misled() -> anyhow::Result<(Case, Round, Language)> {
    let language = Language::of_this_program().misleading();
    let make = |action, path: &str| Op::new(action, path.as_bytes().to_vec());
    let open = |path, flags: i32| make(Action::Open, path).number(flags.cast_unsigned());
    let create = |path| open(path, libc::O_CREAT | libc::O_WRONLY);
    let place =
        |path: &str| path.split_terminator('/').map(|name| name.as_bytes().to_vec()).collect();
    let rule = |key, path| Line::new(key, &place(path), false);
    let case = Case {
        rules: vec![
            rule("files.write.allow", ""),
            rule("files.read.deny", "secret"),
            rule("files.write.deny", "fixed"),
        ],
        setup: vec![
            make(Action::Mkdir, "inner"),
            create("inner/other"),
            create("secret"),
            create("fixed"),
        ],
        ops: vec![
            open("inner/other", libc::O_WRONLY),
            open("secret", libc::O_RDONLY),
            open("fixed", libc::O_WRONLY),
            open("inner/other", libc::O_RDONLY),
        ],
    };
    let mut round = Round::new(std::slice::from_ref(&case), &language)?;
    // The trees may differ then, too.
    let outcome = round.run(None, 0);
    let found = round.findings().next().and_then(|(found, _)| found.map(ToString::to_string));
    let found = found.with_context(|| format!("no disagreement was found: {outcome:?}"))?;
    let told = "Open \"fixed\", flags 0o1: the reference denies; the bystander: succeeded; the member: \
                succeeded";
    ensure!(found == told, "{found}");
    Ok((case, round, language))
}

/// And of the case nothing is left but what shows it.
fn small() -> anyhow::Result<()> {
    let (case, round, language) = misled()?;
    let Err(error) = judge(&[case], &round, &language, "by hand") else {
        bail!("no disagreement was found")
    };
    let told = format!("{error:#}");
    let has = |word: &str| told.contains(word);
    ensure!(has("files.write.deny") && has("fixed"), "{told}");
    ensure!(!has("inner") && !has("secret"), "not the smallest case: {told}");
    Ok(())
}

/// `kernel-tests differential [--seed N] [--operations M] [--round R]`, from that round on
pub(crate) fn command(words: &[String]) -> ExitCode {
    let mut options = USUAL;
    let mut round = 0;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|word| word.parse().ok());
        match (word.as_str(), number) {
            ("--seed", Some(seed)) => options.0 = seed,
            ("--operations", Some(operations)) => options.1 = operations,
            ("--round", Some(first)) => round = first,
            _ => {
                eprintln!(
                    "usage: kernel-tests differential [--seed N] [--operations M] [--round R]"
                );
                return ExitCode::from(2);
            }
        }
    }
    match run(options.0, options.1, round) {
        Ok(counts) => {
            println!("{counts}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Rounds, from `number` on, until so many operations were judged.
fn run(seed: u64, operations: u64, mut number: u64) -> anyhow::Result<Counts> {
    let language = Language::of_this_program();
    let mut counts = Counts::default();
    while counts.total() < operations {
        // Each round can be had alone.
        let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let language = language.closing(number % 3 == 2);
        let cases: Vec<Case> = (0..ZONES).map(|_| case(&mut rng, &language)).collect();
        let mut round = Round::new(&cases, &language)?;
        let left = operations - counts.total();
        let outcome = round.run(Some(&mut rng), OPERATIONS.min(left));
        counts.add(&round.counts);
        let place = format!("seed {seed}, round {number}");
        judge(&cases, &round, &language, &place).and(outcome).context(place)?;
        number += 1;
    }
    Ok(counts)
}

/// A zone to begin with.
fn case(rng: &mut Rng, language: &Language) -> Case {
    let mut model = Model::new();
    let mut setup = generate::zone(rng, &mut model);
    setup.extend(generate::mounts(rng, &mut model));
    let rules = generate::rules(rng, &model, language);
    for _ in 0..3 {
        // Second names are made before there are rules: only where all of it is the agent's own.
        if rules.len() < 2
            && let Some(op) = generate::hard_link(rng, &model)
            && model.apply(&op).is_ok()
        {
            setup.push(op);
        }
    }
    Case { rules, setup, ops: Vec::new() }
}

/// Fails with the smallest case for the first disagreement of a round.
fn judge(cases: &[Case], round: &Round, language: &Language, place: &str) -> anyhow::Result<()> {
    let mut findings = cases.iter().zip(round.findings());
    let found = findings.find_map(|(case, (found, done))| Some((case, found?, done)));
    let Some((case, found, done)) = found else { return Ok(()) };
    let mut case = case.clone();
    case.ops = done[..=found.at].to_vec();
    let rules: Vec<String> = case.rules.iter().map(Line::shown).collect();
    eprintln!(
        "differential: {place}, after {} operations in its zone: {found}; rules: {}; looking for the \
         smallest case",
        case.ops.len(),
        rules.join("; ")
    );
    let small = shrink::shrink(case, language).context("looking for the smallest case")?;
    bail!("the kernel disagrees with the reference\n  {}", shrink::report(&small, found))
}

/// Whether the programs attach to all of these hooks.
fn hooks_exist(names: &[&str]) -> bool {
    names.iter().all(|name| LSM_HOOKS.iter().any(|(hook, _)| hook.name() == *name))
}
