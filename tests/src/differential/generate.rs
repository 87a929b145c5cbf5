//! Random zones, rules and operations.

use super::model::{CREATE, Id, Last, Model, Name, Names, Object, ROOT};
use super::operation::{Action, Op};
use super::rules::{Language, Line};
use fastrand::Rng;

/// Names of everyday; patterns speak of some.
const PLAIN: [&[u8]; 22] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"src",
    b"lib",
    b"config",
    b"hooks",
    b".git",
    b".env",
    b".env.local",
    b".envrc",
    b"id_rsa",
    b"id_rsa.pub",
    b"x.pem",
    b"x.pem.bak",
    b"pem",
    b"secret",
    b"..data",
    b"...",
    b"notes.txt",
    b"README",
];
/// Names that nobody expects.
const ODD: [&[u8]; 14] = [
    b"two\nlines",
    b"with space",
    b"not utf-8 \xff\xfe",
    b"\xc0\x80",
    b" (deleted)",
    b"\x1b[2J",
    b"*",
    b"[x]",
    b"{y}",
    b"$z",
    b"back\\slash",
    b"\"",
    "\u{fc}\u{2603}".as_bytes(),
    b"mnt:[4026531840]",
];
/// Lengths at and around the borders of the kernel side's tables.
const LENGTHS: [usize; 8] = [22, 23, 24, 25, 26, 64, 254, 255];
/// Longest path from a zone's root; the rest of `PATH_MAX` is for what leads there and for detours.
const LONGEST: usize = 3000;
/// Deepest directory beneath a zone's root.
const DEEPEST: usize = 56;
/// How a zone of middling size is kept.
const OBJECTS: usize = 50;

pub(crate) fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> Option<&'a T> {
    rng.choice(from)
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

fn name(rng: &mut Rng) -> Name {
    match rng.u32(0..100) {
        0..75 => PLAIN[rng.usize(0..PLAIN.len())].to_vec(),
        75..90 => ODD[rng.usize(0..ODD.len())].to_vec(),
        _ => {
            let length = LENGTHS[rng.usize(0..LENGTHS.len())];
            // Few different ones, so that they meet again; they differ in the last byte only.
            let mut name = vec![b'n'; length];
            name[length - 1] = b'a' + rng.u8(0..3);
            name
        }
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}

fn depth(path: &[u8]) -> usize {
    path.split(|byte| *byte == b'/').count()
}

/// A zone's objects, as operations that make them; the model knows them afterwards.
pub(crate) fn zone(rng: &mut Rng, model: &mut Model) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut make = |model: &mut Model, op: Op| {
        let second = if op.action == Action::Link { &op.second } else { &op.path };
        let free = model.resolve(second, Last::Name).is_ok_and(|target| target.object.is_none());
        if free && second.len() < LONGEST && model.apply(&op).is_ok() {
            ops.push(op);
        }
    };
    if chance(rng, 40) {
        let mut path = Vec::new();
        for _ in 0..rng.usize(20..=DEEPEST) {
            path = join(&path, &name(rng));
            make(model, Op::new(Action::Mkdir, path.clone()));
        }
    }
    for _ in 0..rng.usize(10..OBJECTS) {
        let path = join(&directory(rng, model), &name(rng));
        let op = Op::new(
            match rng.u32(0..100) {
                0..45 => Action::Mkdir,
                45..85 => Action::Open,
                85..90 => Action::Mknod,
                _ => Action::Symlink,
            },
            path,
        );
        let op = match op.action {
            Action::Open => op.number(CREATE),
            Action::Symlink => aim(rng, model, op),
            _ => op,
        };
        make(model, op);
    }
    ops
}

/// Mounts on new directories in the zone's root.
pub(crate) fn mounts(rng: &mut Rng, model: &mut Model) -> Vec<Op> {
    let mut ops = Vec::new();
    for point in [b"mounted".as_slice(), b"mounted too"] {
        if !chance(rng, 35) {
            continue;
        }
        let mount = if chance(rng, 40) {
            Op::new(Action::Mount, point.to_vec())
        } else {
            let from = directory(rng, model);
            let inner = model.resolve(&from, Last::Followed).ok().and_then(|target| target.object);
            let is_own = inner.is_some_and(|id| model.spot_of_directory(id).file_system == 0);
            // The zone's root stays: a mount of it would show itself.
            if !is_own || model.mounts.iter().any(|mount| mount.point.join(&b'/') == from) {
                continue;
            }
            Op::new(Action::Bind, from).second(point.to_vec())
        };
        for op in [Op::new(Action::Mkdir, point.to_vec()), mount] {
            if model.apply(&op).is_ok() {
                ops.push(op);
            }
        }
        for _ in 0..4 {
            let kind = if chance(rng, 50) { Action::Mkdir } else { Action::Mknod };
            let op = Op::new(kind, join(point, &name(rng)));
            let free = model.resolve(&op.path, Last::Name).is_ok_and(|t| t.object.is_none());
            if free && model.apply(&op).is_ok() {
                ops.push(op);
            }
        }
    }
    ops
}

/// Second names of files, before the session.
pub(crate) fn hard_link(rng: &mut Rng, model: &Model) -> Option<Op> {
    let from = existing(rng, model);
    let to = join(&directory(rng, model), &name(rng));
    let file = model.resolve(&from, Last::Itself).ok()?.object?;
    let free = model.resolve(&to, Last::Name).is_ok_and(|target| target.object.is_none());
    (free && matches!(model.object(file), Object::File) && to.len() < LONGEST)
        .then(|| Op::new(Action::Link, from).second(to))
}

/// Gives a new symbolic link a target: mostly something that exists, sometimes itself or nothing.
fn aim(rng: &mut Rng, model: &Model, op: Op) -> Op {
    let target = match rng.u32(0..10) {
        0 => op.path.clone(),
        1 => name(rng),
        _ => existing(rng, model),
    };
    if chance(rng, 50) {
        return op.number(1).second(target);
    }
    let up = b"../".repeat(depth(&op.path) - 1);
    let target = if target.is_empty() { b".".to_vec() } else { target };
    op.second([up, target].concat())
}

/// The path of a directory, perhaps through links.
fn directory(rng: &mut Rng, model: &Model) -> Vec<u8> {
    walk(rng, model, true)
}

/// The path of something that exists.
fn existing(rng: &mut Rng, model: &Model) -> Vec<u8> {
    walk(rng, model, false)
}

fn walk(rng: &mut Rng, model: &Model, directory: bool) -> Vec<u8> {
    let mut path = Vec::new();
    let mut here: Id = ROOT;
    let mut levels = 0;
    loop {
        let mut entries = model.entries(here);
        let count = entries.len();
        // Where there is but one way on, it leads down a deep chain.
        let stop = match (levels, count) {
            (_, 0) => true,
            (0, _) => chance(rng, 12),
            (_, 1) => chance(rng, 4),
            _ => chance(rng, 30),
        };
        if stop || levels > DEEPEST || path.len() > LONGEST {
            return path;
        }
        let Some((name, id)) = entries.nth(rng.usize(0..count)) else { return path };
        let (there, mut next) = (join(&path, name), model.entered(id));
        if matches!(model.object(id), Object::Link { .. }) {
            let target = model.resolve(&there, Last::Followed).ok();
            next = target.and_then(|target| target.object).unwrap_or(id);
        }
        if !model.is_directory(next) {
            return if directory { path } else { there };
        }
        path = there;
        here = next;
        levels += 1;
    }
}

/// Rules about a zone.
pub(crate) fn rules(rng: &mut Rng, model: &Model, language: &Language) -> Vec<Line> {
    let mut lines = Vec::new();
    if chance(rng, 90) {
        lines.push(Line::new("files.write.allow", &Names::new(), chance(rng, 50)));
    }
    if language.closed() {
        lines.push(Line::new("files.read.allow", &Names::new(), false));
    }
    let keys = language.keys();
    for _ in 0..rng.usize(2..12) {
        let key = keys[rng.usize(0..keys.len())];
        if language.patterns() && chance(rng, 35) {
            lines.push(Line::pattern(rng, key));
            continue;
        }
        let mut path = match rng.u32(0..100) {
            0..60 => existing(rng, model),
            _ => join(&directory(rng, model), &name(rng)),
        };
        if chance(rng, 15) {
            path = join(&path, &name(rng));
        }
        if depth(&path) <= DEEPEST {
            let names: Names = path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            lines.push(Line::new(key, &names, chance(rng, 40)));
        }
    }
    lines
}

/// A path for an operation: something that is there, or not, or that a rule names.
fn path(rng: &mut Rng, model: &Model, named: &[Vec<u8>], fresh: bool) -> Vec<u8> {
    let path = match rng.u32(0..100) {
        0..35 if !named.is_empty() => {
            let path = named[rng.usize(0..named.len())].clone();
            match rng.u32(0..10) {
                0..6 => path,
                6..9 => join(&path, &name(rng)),
                _ => {
                    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    join(&path[..end], &name(rng))
                }
            }
        }
        _ if fresh => join(&directory(rng, model), &name(rng)),
        _ => existing(rng, model),
    };
    let path = if path.is_empty() { name(rng) } else { path };
    if chance(rng, 12) { detour(rng, model, &path) } else { path }
}

/// The same path, with empty and dot components, and there and back again.
fn detour(rng: &mut Rng, model: &Model, path: &[u8]) -> Vec<u8> {
    let mut spelled = Vec::new();
    let mut done = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if chance(rng, 30) && spelled.len() < LONGEST {
            let here = model.resolve(&done, Last::Followed).ok().and_then(|target| target.object);
            let inside = here.or(done.is_empty().then_some(ROOT));
            let child = inside.and_then(|id| {
                model.entries(id).find(|(_, id)| model.is_directory(*id)).map(|(name, _)| name)
            });
            match child {
                Some(child) => {
                    spelled = join(&spelled, child);
                    spelled.extend(b"/..");
                }
                None => spelled.extend(if spelled.is_empty() { b".".as_slice() } else { b"/." }),
            }
        }
        spelled = join(&spelled, name);
        done = join(&done, name);
        if chance(rng, 5) {
            spelled = join(&spelled, b"");
        }
    }
    while spelled.last() == Some(&b'/') {
        spelled.pop();
    }
    spelled
}

/// The next operation in a zone.
pub(crate) fn operation(
    rng: &mut Rng,
    model: &Model,
    named: &[Vec<u8>],
    language: &Language,
) -> Op {
    let mut at = |fresh| path(rng, model, named, fresh);
    let (there, other, new) = (at(false), at(false), at(true));
    let op = |action, path: &Vec<u8>| Op::new(action, path.clone());
    let open = |path: &Vec<u8>, flags: i32| {
        let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
        Op::new(Action::Open, path.clone()).number(flags.cast_unsigned())
    };
    match rng.u32(0..100) {
        0..22 => open(&there, libc::O_RDONLY),
        22..31 => open(&there, libc::O_WRONLY),
        31..35 => open(&there, libc::O_RDWR),
        35..38 => open(&there, libc::O_TRUNC | rng.i32(0..=2)),
        38..45 => {
            let extra = [0, libc::O_EXCL, libc::O_TRUNC, libc::O_NOFOLLOW];
            open(&new, libc::O_CREAT | rng.i32(0..=2) | extra[rng.usize(0..4)])
        }
        45..46 => open(&there, libc::O_PATH),
        46..48 => open(&there, libc::O_TMPFILE | rng.i32(1..=2)),
        48..54 => op(Action::Mkdir, &new),
        54..57 => op(Action::Mknod, &new),
        57..61 => aim(rng, model, op(Action::Symlink, &new)),
        61..67 => op(Action::Link, &there).second(new),
        67..80 => {
            let (flags, to) = match rng.u32(0..10) {
                0..6 => (0, if rng.bool() { new } else { other }),
                6 => (libc::RENAME_NOREPLACE, new),
                _ => (libc::RENAME_EXCHANGE, other),
            };
            op(Action::Rename, &there).number(flags).second(to)
        }
        80..84 => op(Action::Unlink, &there),
        84..87 => op(Action::Rmdir, &there),
        87..89 => op(Action::Truncate, &there),
        89..91 => op(Action::Chmod, &there).number([0o644, 0o755, 0o700][rng.usize(0..3)]),
        91..93 => op(Action::Chown, &there).number(rng.u32(0..2)),
        93..96 if language.attributes() => match rng.u32(0..3) {
            0 => op(Action::Times, &there).number(rng.u32(0..2)),
            1 => op(Action::SetAttribute, &there),
            _ => op(Action::RemoveAttribute, &there),
        },
        93..99 => op(Action::Execute, &there),
        _ => op(Action::Stat, &there),
    }
}
