#pragma once

extern "C" {
void put(const char * text);
void put_number(long n); // n >= 0
[[noreturn]] void quit(int status);

int run(int argc, char ** argv); // the program
}
