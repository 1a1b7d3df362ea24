//! The files of the feature `tools`, as upstream's CMakeLists.txt files list them (a test compares).

/// Folders of the pinned tree that only this feature reads.
pub const FOLDERS: &[&str] = &["common/", "tools/", "vendor/"];

/// llama-common without its parsers; the slowest to compile first.
pub const COMMON: &[&str] = &[
    "common/arg.cpp",
    "common/preset.cpp",
    "common/peg-parser.cpp",
    "common/speculative.cpp",
    "common/chat-diff-analyzer.cpp",
    "common/json.cpp",
    "common/chat-peg-parser.cpp",
    "common/download.cpp",
    "common/chat.cpp",
    "common/jinja/value.cpp",
    "common/common.cpp",
    "common/jinja/runtime.cpp",
    "common/json-schema.cpp",
    "common/json-schema-to-grammar.cpp",
    "common/jinja/parser.cpp",
    "common/jinja/caps.cpp",
    "common/sampling.cpp",
    "common/hf-cache.cpp",
    "common/fit.cpp",
    "common/chat-auto-parser-generator.cpp",
    "common/chat-auto-parser-helpers.cpp",
    "common/console.cpp",
    "common/debug.cpp",
    "common/file-lock.cpp",
    "common/imatrix-loader.cpp",
    "common/jinja/lexer.cpp",
    "common/jinja/string.cpp",
    "common/llguidance.cpp",
    "common/log.cpp",
    "common/ngram-cache.cpp",
    "common/ngram-map.cpp",
    "common/ngram-mod.cpp",
    "common/reasoning-budget.cpp",
    "common/subproc.cpp",
    "common/trie.cpp",
    "common/unicode.cpp",
];

/// Parsers of single models' answers: small files behind large headers, compiled as one translation unit. They declare
/// everything in a header of their own, so that no name of one can mean another in the next.
pub const PARSERS: &[&str] = &[
    "common/parsers/parsers.cpp",
    "common/parsers/cohere2moe.cpp",
    "common/parsers/deepseek.cpp",
    "common/parsers/functionary-v3-2.cpp",
    "common/parsers/gemma4.cpp",
    "common/parsers/gigachat-v3.cpp",
    "common/parsers/gpt-oss.cpp",
    "common/parsers/harmony-xml.cpp",
    "common/parsers/k2-horizon.cpp",
    "common/parsers/kimi-k2.cpp",
    "common/parsers/kimi-k3.cpp",
    "common/parsers/ling3.cpp",
    "common/parsers/lfm2.cpp",
    "common/parsers/llm-jp-harmony.cpp",
    "common/parsers/minicpm5.cpp",
    "common/parsers/minimax-m3.cpp",
    "common/parsers/ministral3.cpp",
    "common/parsers/muse-glimmer.cpp",
    "common/parsers/muse-spark.cpp",
    "common/parsers/qwen3-coder.cpp",
    "common/parsers/translate-gemma.cpp",
];

/// Template of the build information that the tools print.
pub const BUILD_INFO: &str = "common/build-info.cpp.in";

/// The HTTP client behind the options that download models.
pub const HTTP: &[&str] = &["vendor/cpp-httplib/httplib.cpp"];

/// The tools, without their `main`.
pub const TOOLS: &[&str] = &[
    "tools/llama-bench/llama-bench.cpp",
    "tools/perplexity/perplexity.cpp",
    "tools/completion/completion.cpp",
    "tools/quantize/quantize.cpp",
];

/// Folders with headers, inside the tree.
pub const INCLUDES: &[&str] = &["common", "vendor", "include", "ggml/include"];

/// The C entry points, in `native/`.
pub const ENTRY: &[&str] = &["tools.cpp"];
