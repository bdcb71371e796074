/* The library that `prnn run --front` puts in front of cuDNN, for programs that load cuDNN themselves. It has cuDNN's
 * name and version node and no functions: those come from the libraries that it is linked to, first libprnn_cudnn.so
 * and then cuDNN itself, in the order in which dlsym searches them. So it fits every cuDNN 9. The path of cuDNN is
 * written into a copy of the file when it is used (prnn/commands/run.py). */
__attribute__((visibility("default"))) const int prnnCudnnFront = 9;
