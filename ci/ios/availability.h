// What an SDK of Apple's sets in libc++'s __config_site: use only what the deployment target's libc++.dylib has.
#undef _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS
#define _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS 1
