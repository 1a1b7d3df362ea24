# Read by cmake at the end of the stock build's configuration (ci/stock.sh): what the tools share, to parse options and
# to load models from the net, computes nothing that is compared, and takes half as long at -O1. With SMOL_QUICK so does
# the library above ggml: it makes graphs, and on x86-64, where its operations are not fused, it gives the same numbers.
function(smol_less_optimized)
    set(targets llama-common cpp-httplib)
    if(SMOL_QUICK)
        list(APPEND targets llama)
    endif()
    foreach(target ${targets})
        if(TARGET ${target})
            target_compile_options(${target} PRIVATE -O1)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL smol_less_optimized)
