//! Feature `multi-level`: the CPU backend once per CPU level in one library, and the switch between them.
//!
//! Each level's symbols carry the level in their name. Everything else calls the CPU backend through a stub with the
//! plain name, which jumps to where its slot points: to the lowest level until another one is selected. That needs no
//! dlopen, so it works in a static program and on iOS, and it costs one indirect jump a call of an outer function.

use crate::cpu_level::CpuLevel;
use crate::symbols::{Symbol, final_name};
use crate::vars::Vars;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Lowest first; at start they are tried from the highest down.
const X86: &[&str] = &["x86-64-v2", "x86-64-v3", "x86-64-v4+vnni"];
const ARM: &[&str] =
    &["armv8-a", "armv8.2-a+dotprod", "armv8.2-a+dotprod+fp16", "armv8.2-a+dotprod+fp16+i8mm"];

/// The levels to compile, lowest first: the one that the user or the target asks for, and with `multi-level` those above
/// it, where nothing that is asked for means what any machine of the target has.
pub fn resolve(vars: &Vars) -> Result<Vec<CpuLevel>, String> {
    if !vars.features.contains("multi-level") {
        return Ok(vec![CpuLevel::resolve(vars)?]);
    }
    let lowest =
        if vars.cpu.is_some() { CpuLevel::resolve(vars)? } else { CpuLevel::generic(vars)? };
    let names = match vars.target_arch.as_str() {
        "x86_64" => X86,
        "aarch64" => ARM,
        _ => &[],
    };
    let mut levels = vec![lowest];
    for name in names {
        let level = CpuLevel::parse(name, &vars.target_arch)?;
        let needs = |feature| level.required.contains(feature);
        let lowest = &levels[0].required;
        if lowest.iter().all(needs) && level.required.len() > lowest.len() {
            levels.push(level);
        }
    }
    Ok(levels)
}

/// The name of a symbol that the CPU backend of one level defines.
pub fn level_name(name: &str, level: &str) -> String {
    let level: String =
        level.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{name}.smol.{level}")
}

/// What the objects define, and what they want of each other.
#[derive(Default)]
pub struct Names {
    /// Defined outside of any level.
    pub base: BTreeSet<String>,
    /// Defined by each level: name -> whether it can be called.
    pub levels: Vec<BTreeMap<String, bool>>,
    wanted: BTreeSet<String>,
}

impl Names {
    pub fn new(levels: usize) -> Self {
        Names { levels: vec![BTreeMap::new(); levels], ..Names::default() }
    }

    /// Adds the symbols of one object; `level`: the one that it belongs to.
    pub fn add(&mut self, symbols: Vec<Symbol>, level: Option<usize>) {
        for symbol in symbols {
            match (symbol.defined, level) {
                (true, Some(level)) => {
                    self.levels[level].insert(symbol.name, symbol.callable);
                }
                (true, None) => {
                    self.base.insert(symbol.name);
                }
                (false, None) => {
                    self.wanted.insert(symbol.name);
                }
                (false, Some(_)) => {}
            }
        }
    }

    /// The name in the library of what an object of `level` calls `name`; `None`: it is not ours.
    pub fn rename(&self, name: &str, level: Option<(usize, &str)>) -> Option<String> {
        match level {
            Some((index, level)) if self.levels[index].contains_key(name) => {
                Some(level_name(name, level))
            }
            _ => self.base.contains(name).then(|| final_name(name)),
        }
    }

    /// The functions of the CPU backend that the rest calls, or that `public` (the text of its header) declares.
    pub fn entries(&self, public: &str) -> Result<Vec<String>, String> {
        let Some(lowest) = self.levels.first() else { return Ok(vec![]) };
        let words: BTreeSet<&str> =
            public.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        let mut entries = Vec::new();
        for (name, callable) in lowest {
            let wanted = self.wanted.contains(name) && !self.base.contains(name);
            if !wanted && !words.contains(name.as_str()) {
                continue;
            }
            if !callable {
                return Err(format!("{name} of the CPU backend is data: it cannot be switched"));
            }
            if !self.levels.iter().all(|level| level.contains_key(name)) {
                return Err(format!("not every CPU level defines {name}"));
            }
            entries.push(name.clone());
        }
        Ok(entries)
    }
}

/// C source with the stubs of `entries` and the switch between levels; see `native/levels.h`.
pub fn source(levels: &[CpuLevel], entries: &[String], arch: &str, apple: bool) -> String {
    // A label in assembly is the C name with the format's prefix.
    let prefix = if apple { "_" } else { "" };
    let mut text =
        format!("#include \"levels.h\"\n\nconst uint32_t smol_level_n = {};\n", levels.len());
    for (number, entry) in entries.iter().enumerate() {
        for (level, info) in levels.iter().enumerate() {
            let symbol = level_name(entry, &info.name);
            let _ = writeln!(
                text,
                "extern void smol_level_fn_{number}_{level}(void) __asm__(\"{prefix}{symbol}\");"
            );
        }
        let _ = writeln!(
            text,
            "__attribute__((used)) void (*smol_level_slot_{number})(void) = smol_level_fn_{number}_0;"
        );
        text.push_str(&stub(
            arch,
            apple,
            &format!("{prefix}{entry}"),
            &format!("{prefix}smol_level_slot_{number}"),
        ));
    }
    text.push_str("\nvoid smol_level_apply(uint32_t level) {\n    switch (level) {\n");
    for level in 0..levels.len() {
        let _ = writeln!(text, "        case {level}:");
        for number in 0..entries.len() {
            let _ = writeln!(
                text,
                "            smol_level_slot_{number} = smol_level_fn_{number}_{level};"
            );
        }
        text.push_str("            break;\n");
    }
    text.push_str("    }\n}\n");
    text
}

/// An assembly function that jumps to where a slot points and touches no argument.
fn stub(arch: &str, apple: bool, name: &str, slot: &str) -> String {
    let body: &[String] = &match (arch, apple) {
        ("aarch64", true) => [
            "hint #34".to_owned(),
            format!("adrp x16, {slot}@PAGE"),
            format!("ldr x16, [x16, {slot}@PAGEOFF]"),
            "br x16".to_owned(),
        ],
        ("aarch64", false) => [
            "hint #34".to_owned(),
            format!("adrp x16, {slot}"),
            format!("ldr x16, [x16, :lo12:{slot}]"),
            "br x16".to_owned(),
        ],
        _ => ["endbr64".to_owned(), format!("jmpq *{slot}(%rip)"), String::new(), String::new()],
    };
    // ELF: back to the section that the compiler believes to be in.
    let (kind, before, after) = match apple {
        true => (String::new(), ".text", ""),
        false => (format!(".type {name}, %function\\n"), ".pushsection .text", ".popsection\\n"),
    };
    let mut text =
        format!("__asm__(\"{before}\\n.p2align 4\\n.globl {name}\\n{kind}{name}:\\n\"\n");
    for line in body.iter().filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "        \"    {line}\\n\"");
    }
    let _ = writeln!(text, "        \"{after}\");");
    text
}
