//! The oldest iOS that the C++ code is compiled for.

use crate::vars::Vars;

/// What the `cc` crate and clang read.
pub const VARIABLE: &str = "IPHONEOS_DEPLOYMENT_TARGET";
/// C++17's library parts that are used here came with iOS 12, the last one of the first 64-bit devices.
const OLDEST: (u32, u32) = (12, 0);

/// The deployment target for iOS: what the user asks for, or 12.0; `None` for other systems. Without it, `cc` takes the
/// version of the SDK, and the program would not start on older devices.
pub fn deployment_target(vars: &Vars) -> Result<Option<String>, String> {
    if vars.target_os != "ios" {
        return Ok(None);
    }
    let Some(wanted) = &vars.ios_version else {
        return Ok(Some(format!("{}.{}", OLDEST.0, OLDEST.1)));
    };
    let mut parts = wanted.split('.').map(str::parse::<u32>);
    let major = parts.next().unwrap_or(Ok(0));
    let minor = parts.next().unwrap_or(Ok(0));
    match (major, minor) {
        (Ok(major), Ok(minor)) if (major, minor) >= OLDEST => Ok(Some(wanted.clone())),
        (Ok(_), Ok(_)) => Err(format!(
            "{VARIABLE}={wanted}: llama.cpp needs C++17 with parts of the library that came with iOS 12; set it to 12.0 \
             or higher, or leave it unset"
        )),
        _ => Err(format!("{VARIABLE}={wanted} is no version; leave it unset for 12.0")),
    }
}
