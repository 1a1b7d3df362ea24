# Read by cmake at the end of the stock build's configuration (ci/stock.sh): what the tools share, to parse options and
# to load models from the net, computes nothing that is compared, and takes half as long at -O1.
function(smol_less_optimized)
    foreach(target llama-common cpp-httplib)
        if(TARGET ${target})
            target_compile_options(${target} PRIVATE -O1)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL smol_less_optimized)
