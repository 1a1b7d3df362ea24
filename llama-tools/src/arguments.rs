//! Options of our own, taken out before upstream sees the arguments.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use llama_rs::tools::Tool;

const CONFIG: &str = "--smol-config";
const HELP: &str = "--smol-help";

/// The arguments of a program, ours and upstream's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) config: Option<PathBuf>,
    pub(crate) help: bool,
    /// Everything else, in order, beginning with the program's name.
    pub(crate) rest: Vec<OsString>,
}

/// Takes our options out of what stands before an argument `--`.
pub(crate) fn split(mut args: impl Iterator<Item = OsString>) -> Result<Arguments, String> {
    let mut found = Arguments::default();
    found.rest.extend(args.next());
    while let Some(arg) = args.next() {
        if arg == "--" {
            found.rest.push(arg);
            break;
        }
        if arg == HELP {
            found.help = true;
            continue;
        }
        let path = if arg == CONFIG {
            args.next().ok_or_else(|| format!("{CONFIG} needs a file"))?
        } else if let Some(path) = value_of(&arg) {
            path
        } else {
            found.rest.push(arg);
            continue;
        };
        if path.is_empty() {
            return Err(format!("{CONFIG} needs a file"));
        }
        if found.config.replace(path.into()).is_some() {
            return Err(format!("{CONFIG} is given twice"));
        }
    }
    found.rest.extend(args);
    Ok(found)
}

/// FILE of `--smol-config=FILE`.
fn value_of(arg: &OsStr) -> Option<OsString> {
    let value = arg.as_encoded_bytes().strip_prefix(CONFIG.as_bytes())?.strip_prefix(b"=")?;
    #[cfg(unix)]
    let value = std::os::unix::ffi::OsStrExt::from_bytes(value);
    #[cfg(not(unix))]
    let value = OsStr::new(std::str::from_utf8(value).ok()?);
    Some(OsStr::to_owned(value))
}

/// The text of `--smol-help`.
pub(crate) fn help(tool: Tool) -> String {
    let build = llama_rs::build_info();
    let levels: Vec<_> = build.cpu_levels.iter().map(|level| level.name).collect();
    let patches: Vec<_> =
        build.patches.iter().filter(|patch| patch.applied).map(|patch| patch.id).collect();
    format!(
        "\
{tool} of llama.cpp {} ({}), with engines. Upstream's own options: {tool} --help

  {CONFIG} FILE   install the engines that FILE configures; without it this is upstream's tool
  {HELP}          this text

FILE is TOML; every key may be left out, unknown ones are errors:

  [cpu]
  level = \"auto\"        # or one of this build's levels: {}

  [layouts]
  enabled = true        # pack weights of few bits for fast kernels
  prefer = [\"q2_k-16\"]  # layouts to use, or not to use (avoid), by name

  [pager]               # mixtures: read experts when they are needed
  budget = \"auto\"       # memory for experts: a size as \"600MiB\", or {{ slots = N }} of each layer
  policy = \"decayed\"    # which expert leaves: lru, lfu, decayed, slru
  scope = \"layer\"       # which compete: those of a layer, or global
  readers = 4           # threads that read
  io = \"auto\"           # or buffered: through the page cache
  bias = 0.0            # prefer experts in memory: changes what the model says
  keep_top = 1          # experts that are used whatever the bias
  prefetch = \"auto\"     # read guessed experts ahead: off, on, auto
  warm = \"FILE\"         # trace whose most used experts are read at load
  verify = false        # read twice and compare

  [stream]              # other models: read weights each time they are used
  resident = \"auto\"     # weights that stay in memory: a size
  zone = \"auto\"         # memory for those that are read
  readers = 4           # threads that read
  io = \"auto\"           # or buffered: through the page cache
  verify = false        # read twice and compare

  [pack_cache]          # keep packed weights for the next load
  dir = \"FOLDER\"        # where
  verify = false        # compare all bytes with their hashes first

  [observe]
  report = \"FILE\"       # JSON report on the computed graphs; \"-\" is standard error
  ops = [\"MUL_MAT\"]     # operations whose nodes are counted; default: all

Built for {}; patches: {}.
",
        build.llama_version,
        build.llama_commit,
        levels.join(", "),
        build.target,
        patches.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(words: &str) -> Result<Arguments, String> {
        split(words.split(' ').map(OsString::from))
    }

    fn rest(words: &str) -> Vec<OsString> {
        words.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn upstream_gets_everything_else() {
        let found = split_words("tool -m m.gguf --smol-config a.toml -p 1").unwrap();
        assert_eq!(found.config, Some("a.toml".into()));
        assert_eq!(found.rest, rest("tool -m m.gguf -p 1"));
        assert_eq!(split_words("tool --smol-config=b -p 1").unwrap().config, Some("b".into()));
        let found = split_words("tool -- --smol-config a --smol-help").unwrap();
        assert_eq!(found.rest, rest("tool -- --smol-config a --smol-help"));
        assert_eq!((found.config, found.help), (None, false));
        assert!(split_words("tool --smol-help").unwrap().help);
        // Not ours.
        assert_eq!(
            split_words("tool --smol-configure x").unwrap().rest,
            rest("tool --smol-configure x")
        );
    }

    #[test]
    fn incomplete_and_repeated_options_are_refused() {
        for (words, message) in [
            ("tool --smol-config", "needs a file"),
            ("tool --smol-config=", "needs a file"),
            ("tool --smol-config a --smol-config b", "twice"),
        ] {
            let error = split_words(words).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn the_help_shows_a_configuration_that_is_one() {
        let help = help(Tool::BENCH);
        let start = help.find("  [cpu]").unwrap();
        let end = help.find("Built for").unwrap();
        let options = llama_rs::EngineOptions::from_toml(&help[start..end]).unwrap();
        assert_eq!(options.layouts.prefer.len(), 1);
        assert_eq!(options.pager.unwrap().readers, Some(4));
    }

    #[cfg(unix)]
    #[test]
    fn arguments_need_not_be_unicode() {
        use std::os::unix::ffi::OsStringExt;
        let odd = OsString::from_vec(b"--smol-config=\xff".to_vec());
        let found = split([OsString::from("tool"), odd].into_iter()).unwrap();
        assert_eq!(found.config, Some(OsString::from_vec(vec![0xff]).into()));
    }
}
