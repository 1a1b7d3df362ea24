# shellcheck shell=bash
# Sourced with a target: sets what cargo needs to build for it. Where rustup has the target's std, that is nothing.
# Otherwise (after ci/cross-install.sh) Debian's compiler builds std from Debian's source.
cross_env() {
    local target=$1 variable
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] && return
    export RUSTC=/usr/bin/rustc
    # Lets a released compiler build std, as a nightly one does.
    export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_unwind
    case $target in *-musl)
        # Debian's compiler has no start files of musl; zig has, and is the linker.
        variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<< "$target")_RUSTFLAGS
        export "$variable=-C link-self-contained=no"
        ;;
    esac
}
