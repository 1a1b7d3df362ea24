#pragma once

// Makes the stacks of threads that start from now on large enough, where the C library's are not.
void smol_thread_stack();
